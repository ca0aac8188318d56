#pragma once

#include "tessera/sharding/sharding.h"

namespace tessera::dtensor {

/// Concatenation of per-rank findings along a sharded dim: the same number of elements from each
/// rank, in the order of their parts.
///
///   4x10 sharded in dim 1 over 4 ranks, 2 each:   4x8, of which each rank has 4x2
struct ConcatenatedParts {
  Sharding apart;     ///< each rank has its own
  Sharding together;  ///< every rank has all
};

ConcatenatedParts side_by_side(const Sharding& from, int dim, int64_t of_each);

}  // namespace tessera::dtensor
