#pragma once

#include <atomic>
#include <cstdint>
#include <span>
#include <vector>

#include "tessera/collective/call.h"

/// Moves the data of a collective whose calls are all here: copies and reductions between the
/// ranks' own tensors, with no buffer between. The work is cut into shares that touch disjoint
/// memory, so several threads may run different shares at a time; which thread runs which share
/// does not change a bit of the result. Small collectives, and all on accelerators, are one share.
namespace tessera::comm {

class Move {
 public:
  /// The calls of ranks 0..n-1 of a group, checked; they outlive the Move.
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

/// `to`'s elements become `from`'s; as many, of the same dtype. Autograd does not see it.
void copy_piece(const Piece& to, const Piece& from);

/// One message between two ranks: `recv`'s output becomes `send`'s input.
void move_message(const Call& send, const Call& recv);

}  // namespace tessera::comm
