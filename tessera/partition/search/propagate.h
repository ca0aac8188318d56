#pragma once

#include "tessera/partition/graph/assignment.h"
#include "tessera/partition/plan_file/plan.h"
#include "tessera/partition/search/choice_network.h"
#include "tessera/partition/search/search.h"

namespace tessera::partition {

struct PropagateOptions {
  std::optional<cost::Machine> machine;  ///< default: that of the mesh's device
  std::optional<ComputeModel> compute;
  /// Gather weights while running, if that is cheaper. Off: weights are used as they are held.
  bool move_weights = false;
  /// The most bytes of weights, buffers and constants that a rank may hold.
  std::optional<int64_t> weight_limit;
  SearchOptions search;
};

/// The cheapest assignment that honours a plan: every op is placed by the library's rules, every
/// move priced by its plans, and the sum of compute and communication over the whole program is the
/// least that there is, not op by op. Ops without a rule run on whole tensors.
///
/// Throws InvalidArgument, with the node and the reason, if the plan cannot be honoured.
///
///   propagate(program, DeviceMesh::parse("tp=4"), Plan::parse(json, "plan.json"))
Assignment propagate(const program::ExportedProgram& program, const DeviceMesh& mesh,
                     const Plan& plan, const PropagateOptions& options);
inline Assignment propagate(const program::ExportedProgram& program, const DeviceMesh& mesh,
                            const Plan& plan) {
  return propagate(program, mesh, plan, {});
}
/// The same for demands on values.
Assignment propagate(const ProgramView& view, const Pins& pins, const PropagateOptions& options);

/// The parts of it.
NetworkOptions network_options(const DeviceMesh& mesh, const PropagateOptions& options);
Limited search_plan(ChoiceNetwork& choices, const PropagateOptions& options);

}  // namespace tessera::partition
