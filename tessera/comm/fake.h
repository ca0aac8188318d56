#pragma once

#include <memory>

#include "tessera/base/api.h"
#include "tessera/comm/world.h"

/// One rank of a simulated world: for planning, on meta tensors or small real ones.
///
///   auto world = fake_world(5, 1'000'000);
///   auto mesh = init_device_mesh("cpu", {{1000, 1000}}, {}, world);
///
/// Collectives complete immediately. On meta tensors they do nothing. On real ones every other rank
/// is assumed to hold the same data as this one: a gather repeats the own piece, a reduction
/// returns the own value (also for sums: correct in shape, not in magnitude), a receive leaves its
/// buffer unchanged. Invalid sizes are errors as with any backend.
///
/// Creating a world costs nothing per rank; a group costs its list of ranks.
namespace tessera::comm {

TESSERA_API std::shared_ptr<RankWorld> fake_world(int rank, int size);

}  // namespace tessera::comm
