#pragma once

#include "tessera/partition/assignment.h"
#include "tessera/partition/choice_network.h"
#include "tessera/partition/pins.h"

namespace tessera::partition {

struct PropagateOptions {
  std::optional<cost::Machine> machine;  ///< default: that of the mesh's device
  std::optional<ComputeModel> compute;
  /// Gather weights while running, if that is cheaper. Off: weights are used as they are held.
  bool move_weights = false;
  SolveLimits limits;
};

/// The cheapest assignment that honours the pins: every op is placed by the library's rules, every
/// move priced by its plans, and the sum of compute and communication over the whole program is the
/// least that there is, not op by op. Ops without a rule run on whole tensors.
///
/// Throws InvalidArgument, with the node and the reason, if the pins cannot be honoured.
Assignment propagate(const program::ExportedProgram& program, const DeviceMesh& mesh,
                     const Pins& pins, const PropagateOptions& options);
inline Assignment propagate(const program::ExportedProgram& program, const DeviceMesh& mesh,
                            const Pins& pins) {
  return propagate(program, mesh, pins, {});
}

}  // namespace tessera::partition
