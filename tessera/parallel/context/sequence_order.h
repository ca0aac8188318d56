#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <span>
#include <vector>

#include "tessera/base/api.h"
#include "tessera/sharding/local_shape.h"

/// The order in which the positions of a sequence are laid out before the sequence is sharded.
///
/// Under a causal mask the last query attends to all keys and the first to one. If each rank holds
/// one contiguous part, the last rank computes almost twice the mean. Head-tail order gives each
/// rank one part from the front and the matching one from the back. 16 positions over 2 ranks:
///
///   natural      0 1 2 3 4 5 6 7 | 8 9 10 11 12 13 14 15      causal pairs: 36 | 100
///   head_tail    0 1 2 3 12 13 14 15 | 4 5 6 7 8 9 10 11      causal pairs: 68 | 68
///
/// Attention takes the order (ContextParallelOptions) and masks by position; all other layers of
/// a transformer treat positions independently and need no change. Position embeddings, targets and
/// whatever else belongs to positions must be put into the same order.
namespace tessera {

class TESSERA_API SequenceOrder {
 public:
  SequenceOrder() = default;  ///< natural order, for any length

  /// For `length` positions over `ranks` ranks as Shard splits them. Any length: a rank with an odd
  /// number of rows has one row more in its front part.
  static SequenceOrder head_tail(int64_t length, int ranks);
  /// For documents that follow each other in the sequence and attend only within themselves: every
  /// rank gets the front and back part of each document.
  static SequenceOrder head_tail_of_documents(std::span<const int64_t> lengths, int ranks);
  /// Row i holds position positions[i]; must be a permutation.
  static SequenceOrder of_positions(std::span<const int64_t> positions);

  bool is_natural() const { return runs_.empty(); }
  /// 0 for the natural order, which fits any length.
  int64_t length() const { return is_natural() ? 0 : starts_.back() + runs_.back().size(); }

  /// The positions of rows [rows.begin, rows.end), in row order; adjacent intervals are merged.
  std::vector<Interval> positions_of(Interval rows) const;
  /// The rows that hold these positions, in position order.
  std::vector<Interval> rows_of(Interval positions) const;

  /// int64: x.index_select(dim, indices(n)) is x in this order. `length` is needed for the natural
  /// order only and is checked otherwise.
  at::Tensor indices(int64_t length) const;
  /// The inverse permutation.
  at::Tensor inverse_indices(int64_t length) const;

  /// Throws InvalidArgument unless the order fits a sequence of this length.
  void check_length(int64_t length) const;

 private:
  explicit SequenceOrder(std::vector<Interval> runs);

  std::vector<Interval> runs_;   // positions, in row order
  std::vector<int64_t> starts_;  // the first row of each run
};

/// A plain tensor with `dim` put into the order, or back. Differentiable.
TESSERA_API at::Tensor reorder_sequence(const at::Tensor& tensor, int64_t dim,
                                        const SequenceOrder& order);
TESSERA_API at::Tensor restore_sequence(const at::Tensor& tensor, int64_t dim,
                                        const SequenceOrder& order);

}  // namespace tessera
