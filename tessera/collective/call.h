#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/SmallVector.h>

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "tessera/collective/collective.h"

/// The arguments of one rank for a collective among threads, and the checks that ranks match. Ranks
/// are group indexes unless a name says `world`.
namespace tessera::comm {

using TensorRow = c10::SmallVector<at::Tensor, 2>;

struct Call {
  Collective what = Collective::barrier;
  c10d::ReduceOp reduce = c10d::ReduceOp::SUM;  ///< if it reduces
  int root = -1;                                ///< if it has one
  TensorRow inputs{};
  TensorRow outputs{};  ///< in-place collectives have only these
  /// all_to_all_single: elements sent to (received from) each index, as prefix sums of size n+1.
  std::vector<int64_t> input_offsets{};
  std::vector<int64_t> output_offsets{};
  uint64_t history = 0;   ///< all ranks have the same (call_matching.h)
  std::string mistake{};  ///< an error found while the call was assembled

  /// How many tensors a coalesced form has; 1 otherwise.
  size_t parts() const;
  /// The tensor that determines device and dtype of the whole call; null for a barrier.
  const at::Tensor* lead() const;
  bool reduces() const;
};

/// Throws InvalidArgument if the call is invalid by itself, whatever other ranks do.
void check_call(const Call& call, int index, int size);

/// What two ranks must agree on but do not: "rank 0 gave 2x3, rank 2 gave 3x2"; nullopt if two
/// calls of the same round match as far as can be seen from these two.
std::optional<std::string> difference(const Call& a, int world_rank_a, const Call& b,
                                      int world_rank_b);

/// The contiguous range of a tensor's elements, in logical order, that one rank has for another.
struct Piece {
  const at::Tensor* tensor = nullptr;
  int64_t begin = 0;
  int64_t count = 0;
};

/// What `call` sends to rank `to`, and where it stores what rank `from` sends.
Piece given(const Call& call, int to, int size, size_t part);
Piece taken(const Call& call, int from, int size, size_t part);

/// Whether rank `from` sends anything to rank `to` in this round.
bool sends(const Call& call, int from, int to);

/// The first pair whose sizes do not match: "rank 1 gives 6 elements to rank 2, which expects 4".
/// For forms whose sizes may differ by rank; others are compared by difference().
std::optional<std::string> misfit(std::span<const Call* const> calls,
                                  std::span<const int> world_ranks);

}  // namespace tessera::comm
