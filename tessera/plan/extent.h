#pragma once

#include <cstdint>
#include <span>

#include "tessera/sharding/placement.h"

namespace tessera::plan {

/// One shard of a dim, by `ranks` ranks; several nest.
struct Level {
  const Placement* placement;  // shard, strided or ragged
  int64_t ranks;
};

/// The largest part that any rank holds of a dim of n elements after the levels, outermost first.
///   7 elements, S0 over 2 and then SS0(3) over 2: pieces of 4 and 3, of which rank 0 of the second
///   axis holds 2 (of 2+2+0) and 3 (of 1+1+1): 3
int64_t largest_extent(int64_t n, std::span<const Level> levels);

}  // namespace tessera::plan
