#pragma once

#include <span>
#include <vector>

#include "tessera/sharding/local_shape.h"

/// The arithmetic of held_intervals: the intervals of one dim that remain after a list of shards,
/// each at one coordinate. It needs no Sharding, so it serves their construction and layouts that
/// are not shardings (yet).
///
///   dim_intervals(10, {S over 2 at 0, S over 2 at 1})   [0,5), of that the second half: [3,5)
///
/// Cost: linear in the intervals held, times the levels.
namespace tessera {

/// One level of the nesting.
struct DimShard {
  const Placement* placement;  // shard, strided or ragged
  int axis_size;
  int coordinate;
};

/// The part of [0, n) that remains after the placements, outermost first.
std::vector<Interval> dim_intervals(int64_t n, std::span<const DimShard> shards);

/// The elements in all of them.
int64_t total_size(std::span<const Interval> intervals);

/// The levels of one dim: `axes` shard it, outermost first.
std::vector<DimShard> shards_of_dim(const DeviceMesh& mesh, std::span<const Placement> placements,
                                    std::span<const int> axes, std::span<const int> coordinate);

}  // namespace tessera
