#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "tessera/sharding/sharding.h"

/// What a rank holds, worked out the slow way: on lists of single indexes, split as torch.chunk and
/// PyTorch's _StridedShard split tensors. Shares no arithmetic with sharding/.
namespace tessera::test {

using Indexes = std::vector<int64_t>;

/// 0, 1, ..., n-1.
Indexes iota_indexes(int64_t n);

/// torch.chunk(list, count), with empty lists for the chunks that torch leaves out.
std::vector<Indexes> oracle_chunk(const Indexes& list, int64_t count);

/// What is left of a list at one coordinate of one axis; `outer` counts the pieces that the axes
/// before it made, for ragged tables.
Indexes oracle_shard(const Indexes& list, const Placement& placement, int axis_size, int coordinate,
                     int64_t outer);

/// The global indexes of a dim at a coordinate, in local order.
Indexes oracle_held(const Sharding& sharding, int dim, std::span<const int> coordinate);

/// The same of all dims, flattened row-major: element i of the (contiguous) local tensor is element
/// oracle_elements()[i] of the (contiguous) global one.
Indexes oracle_elements(const Sharding& sharding, std::span<const int> coordinate);

}  // namespace tessera::test
