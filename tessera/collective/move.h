#pragma once

#include <atomic>
#include <cstdint>
#include <span>
#include <vector>

#include "tessera/collective/call.h"

/// Moves the data of a collective whose calls have all arrived: copies and reductions directly
/// between the ranks' tensors, without a buffer. The work is split into shares that touch disjoint
/// memory, so several threads may run different shares concurrently; the assignment does not affect
/// the bits of the result. Small collectives, and all on accelerators, are one share.
namespace tessera::comm {

class Move {
 public:
  /// The calls of ranks 0..n-1 of a group, checked; they must outlive the Move.
  explicit Move(std::vector<const Call*> calls);

  int shares() const { return shares_; }
  void run(int share) const;

 private:
  enum class Kind { nothing, exchange, reduce_in_place, reduce_to_each, reduce_sparse };

  int size() const { return static_cast<int>(calls_.size()); }
  bool all_flat() const;
  void exchange(int to) const;
  void reduce_in_place(int share) const;
  void reduce_to(int to) const;
  void reduce_sparse() const;

  std::vector<const Call*> calls_;
  Kind kind_;
  int shares_ = 1;
  std::vector<double> factors_;
};

/// Copies `from` to `to`; equal counts and dtypes. Invisible to autograd.
void copy_piece(const Piece& to, const Piece& from);

/// One message between two ranks: copies `send`'s input to `recv`'s output.
void move_message(const Call& send, const Call& recv);

}  // namespace tessera::comm
