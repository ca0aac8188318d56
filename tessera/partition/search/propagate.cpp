#include "tessera/partition/search/propagate.h"

#include <cmath>

#include "tessera/base/errors.h"

namespace tessera::partition {

NetworkOptions network_options(const DeviceMesh& mesh, const PropagateOptions& options) {
  NetworkOptions out;
  out.machine = options.machine.value_or(cost::default_machine(mesh.device()));
  out.compute = options.compute.value_or(ComputeModel::of_device(mesh.device()));
  out.move_weights = options.move_weights;
  return out;
}

Limited search_plan(ChoiceNetwork& choices, const PropagateOptions& options) {
  Limited found = options.weight_limit
                      ? search_under(choices, *options.weight_limit, options.search)
                      : Limited{search(choices, options.search), 0};
  if (std::isfinite(found.solution.cost)) return found;
  if (options.weight_limit) {
    const double fewest = fewest_weight_bytes(choices);
    require(fewest <= static_cast<double>(*options.weight_limit), "a rank may hold ",
            bytes_text(*options.weight_limit), " of weights; with this mesh and plan it holds ",
            bytes_text(static_cast<int64_t>(fewest)),
            " at least: use more ranks, or shard more of the weights");
    if (std::isfinite(search(choices, options.search).cost)) {
      const std::string why = choices.why_heavy();
      throw InvalidArgument(join_text("no plan was found in which a rank holds at most ",
                                      bytes_text(*options.weight_limit), " of weights",
                                      why.empty() ? "" : "; ", why));
    }
  }
  throw InvalidArgument(join_text("the plan is not possible: ", choices.why_impossible()));
}

Assignment propagate(const ProgramView& view, const Pins& pins, const PropagateOptions& options) {
  const NetworkOptions network = network_options(view.mesh(), options);
  const NodeRows rows(view, pins, network.compute);
  ChoiceNetwork choices(view, pins, rows, network);
  return choices.assignment(search_plan(choices, options).solution);
}

Assignment propagate(const program::ExportedProgram& program, const DeviceMesh& mesh,
                     const Plan& plan, const PropagateOptions& options) {
  ProgramView view(program, mesh);
  const Pins pins = mark(view, plan);
  return propagate(view, pins, options);
}

}  // namespace tessera::partition
