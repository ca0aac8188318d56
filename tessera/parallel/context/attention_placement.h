#pragma once

#include <optional>
#include <vector>

#include "tessera/parallel/context/block_attention.h"
#include "tessera/parallel/context/sequence_order.h"
#include "tessera/sharding/sharding.h"

/// Which rows and heads of queries, keys and values a rank holds, and whether they fit together.
namespace tessera::parallel {

/// Dims of attention tensors.
constexpr int kBatchDim = 0;
constexpr int kHeadDim = 1;
constexpr int kRowDim = 2;

struct AttentionPlacement {
  /// Axes that shard the rows of keys, outermost first.
  std::vector<int> key_axes;
  /// Axes on which the gradients of keys and values are partial: every rank has the keys, but only
  /// a part of the queries.
  std::vector<int> partial_axes;
  /// The local heads of keys that the local queries use, if not all.
  std::optional<Interval> key_heads;
};

/// Throws InvalidArgument if attention on the local tensors would not be a part of the attention.
AttentionPlacement place_attention(const Sharding& query, const Sharding& key,
                                   const Sharding& value);

/// The rows of a tensor at a coordinate, with the positions that they hold.
RowSet rows_at(const Sharding& sharding, const SequenceOrder& order, std::span<const int> at);

/// All rows, sorted by position.
RowSet sorted_rows(int64_t length, const SequenceOrder& order);

/// The sharding of a mask beside queries of that sharding: split with them in every dim that it has
/// more than one element of; keys are whole.
Sharding mask_sharding(const Sharding& query, std::vector<int64_t> mask_shape, DType dtype);

}  // namespace tessera::parallel
