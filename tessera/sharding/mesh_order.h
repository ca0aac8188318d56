#pragma once

#include <span>
#include <vector>

#include "tessera/sharding/sharding.h"

/// A sharding's placements as a list that needs no order beside it: the axes that cut one dim do so
/// in mesh order, and each rank holds what the sharding says.
///
///   dp=2,tp=2 : S0#1,S0#0 : 8x16   ->  SS0(2),S0           as PyTorch writes it
///   dp=3,tp=2 : S0#1,S0#0 : 7x16   ->  SS0(2),S0[2,1,2,1,0,1]
///   dp=2,tp=2 : S0,S1 : 8x16       ->  S0,S1               the order is the mesh's already
///
/// In the second, tp leaves 4 and 3 rows, which dp cuts as 2,2,0 and 1,1,1: no chunks of what the
/// ranks of dp hold (3, 3 and 1), so tp is a ragged shard.
namespace tessera {

/// Sharding::placements() alone does not say the order; a list that a program may keep and read
/// back is made here. NotSupported where no list describes the parts: three or more axes cut a dim
/// unevenly in an order of their own, or ragged shards do.
std::vector<Placement> placements_in_mesh_order(const Sharding& sharding);

/// Whether this is that list.
bool says_same(std::span<const Placement> list, const Sharding& sharding);

}  // namespace tessera
