#pragma once

#include <span>
#include <vector>

#include "tessera/sharding/local_shape.h"

/// The arithmetic under held_intervals: one dim, cut by a list of placements. The planner uses it
/// on layouts that are not (yet) shardings.
namespace tessera {

struct DimCut {
  const Placement* placement;  // shard, strided or ragged
  int axis_size;
  int coordinate;
};

/// What is left of [0, n) after the cuts, first cut first.
std::vector<Interval> cut_dim(int64_t n, std::span<const DimCut> cuts);

std::vector<DimCut> cuts_of_dim(const DeviceMesh& mesh, std::span<const Placement> placements,
                                std::span<const int> axes, std::span<const int> coordinate);

}  // namespace tessera
