#pragma once

#include <optional>
#include <string>
#include <vector>

#include "tessera/checkpoint/state.h"
#include "tessera/comm/world.h"
#include "tessera/dcp/write_plan.h"

/// What a whole state looks like, over all ranks, and which rank writes what of it.
namespace tessera::checkpoint {

struct PlannedEntry {
  std::string name;
  bool is_tensor = false;
  DType dtype = DType::f32;
  std::vector<int64_t> shape;
};

struct StatePlan {
  std::vector<PlannedEntry> entries;
  std::vector<dcp::PlannedWrite> mine;  ///< of this rank; values have a box without dims
};

/// Ranks may hold different names (stages of a pipeline, meshes of some ranks). Collective. Throws
/// InvalidArgument on every rank for states that describe_state refuses, and where a part of a
/// sharded tensor is in the state of no rank.
StatePlan plan_state(const State& state, comm::RankWorld& world);

}  // namespace tessera::checkpoint
