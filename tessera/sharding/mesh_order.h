#pragma once

#include <span>
#include <vector>

#include "tessera/base/api.h"
#include "tessera/sharding/sharding.h"

/// A sharding's placements as a list that needs no separate order: the axes that shard one dim do
/// so in mesh order, and each rank holds the same elements as under the sharding.
///
///   dp=2,tp=2 : S0#1,S0#0 : 8x16   ->  SS0(2),S0           as PyTorch writes it
///   dp=3,tp=2 : S0#1,S0#0 : 7x16   ->  SS0(2),S0[2,1,2,1,0,1]
///   dp=2,tp=2 : S0,S1 : 8x16       ->  S0,S1               already in mesh order
///
/// In the second, tp leaves 4 and 3 rows, which dp splits as 2,2,0 and 1,1,1. These are not chunks
/// of what the ranks of dp hold (3, 3 and 1), so tp is a ragged shard.
namespace tessera {

/// Sharding::placements() alone does not include the order; a list that a program may store and
/// read back must come from here. Throws NotSupported if no list describes the parts: three or more
/// axes shard a dim unevenly in another order, or ragged shards do.
TESSERA_API std::vector<Placement> placements_in_mesh_order(const Sharding& sharding);

/// Whether `list` describes the same parts as `sharding`.
bool describes_same_parts(std::span<const Placement> list, const Sharding& sharding);

}  // namespace tessera
