#pragma once

#include <memory>

#include "tessera/comm/world.h"

/// One rank of a world that does not exist: for planning, on meta tensors or small real ones.
///
///   auto world = fake_world(5, 1'000'000);
///   auto mesh = init_device_mesh("cpu", {{1000, 1000}}, {}, world);
///
/// Collectives complete at once. On meta tensors they do nothing; on real ones every other rank is
/// taken to hold what this one holds: a gather fills each place with the own piece, a reduction
/// leaves the own value (for sums too: the value has the right shape, not the right size), a
/// receive leaves its buffer alone. Sizes that cannot be right are errors as with any backend.
///
/// Making a world costs nothing per rank; a group costs its list of ranks.
namespace tessera::comm {

std::shared_ptr<RankWorld> fake_world(int rank, int size);

}  // namespace tessera::comm
