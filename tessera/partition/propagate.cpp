#include "tessera/partition/propagate.h"

#include <cmath>

#include "tessera/base/errors.h"

namespace tessera::partition {

Assignment propagate(const ProgramView& view, const Pins& pins, const PropagateOptions& options) {
  const std::string& device = view.mesh().device();
  NetworkOptions network;
  network.machine = options.machine.value_or(cost::default_machine(device));
  network.compute = options.compute.value_or(ComputeModel::of_device(device));
  network.move_weights = options.move_weights;
  const NodeRows rows(view, pins, network.compute);
  ChoiceNetwork choices(view, pins, rows, network);
  const Solution solution = solve(choices.network(), options.limits);
  require(std::isfinite(solution.cost),
          "the plan is not possible: ", [&] { return choices.why_impossible(); });
  return choices.assignment(solution);
}

Assignment propagate(const program::ExportedProgram& program, const DeviceMesh& mesh,
                     const Plan& plan, const PropagateOptions& options) {
  ProgramView view(program, mesh);
  const Pins pins = mark(view, plan);
  return propagate(view, pins, options);
}

}  // namespace tessera::partition
