#pragma once

#include <map>
#include <string>
#include <vector>

#include "tessera/checkpoint/state.h"
#include "tessera/comm/world.h"

/// What each name of a state is, over all ranks.
namespace tessera::checkpoint {

/// One way in which ranks hold a name.
struct HeldAs {
  /// "S:" a sharding, "T:" dtype and shape of a plain tensor, "V:" a value.
  std::string text;
  std::vector<int> holders;  ///< the ranks that have the name in their state, ascending
};

/// By name. Several elements are copies of one sharded tensor on meshes of different ranks, as of a
/// model that is sharded over `mesh["tp"]` alone: "tp=2 : S0 : 8" and "tp=2@2,3 : S0 : 8".
using StateDescription = std::map<std::string, std::vector<HeldAs>>;

/// Collective; one short message where all ranks hold the same. Throws InvalidArgument on every
/// rank where two ranks disagree about a tensor, have different values under one name, or hold
/// copies on several meshes that are not equal: those are compared by their checksums, since stages
/// of a pipeline may have used one name for two tensors.
StateDescription describe_state(const State& state, comm::RankWorld& world);

/// The text of a HeldAs for messages.
std::string readable(const std::string& text);

}  // namespace tessera::checkpoint
