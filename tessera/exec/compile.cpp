#include <algorithm>

#include "tessera/base/errors.h"
#include "tessera/base/shape.h"
#include "tessera/comm/world.h"
#include "tessera/exec/compile_exchange.h"
#include "tessera/exec/program.h"
#include "tessera/mesh/axes_text.h"
#include "tessera/sharding/local_shape.h"

namespace tessera::exec {
namespace {

/// The ranks that take part in a step, with their coordinates, and my index among them.
struct Members {
  std::vector<int> ranks;
  std::vector<Coordinate> coordinates;
  size_t me = 0;

  size_t size() const { return ranks.size(); }
};

Members members_of(const DeviceMesh& mesh, std::span<const int> axes) {
  Members out;
  const int my_rank = *mesh.my_rank();
  out.ranks = mesh.group(axes, my_rank);
  // Coordinates follow from the index in the group; querying the mesh for each would search it.
  for (size_t i = 0; i < out.ranks.size(); ++i) {
    Coordinate coordinate = *mesh.my_coordinate();
    auto rest = static_cast<int64_t>(i);
    for (size_t a = axes.size(); a-- > 0;) {
      coordinate[static_cast<size_t>(axes[a])] = static_cast<int>(rest % mesh.size(axes[a]));
      rest /= mesh.size(axes[a]);
    }
    if (out.ranks[i] == my_rank) out.me = i;
    out.coordinates.push_back(std::move(coordinate));
  }
  return out;
}

void compile_slice(Action& action, const plan::Step& step, const Coordinate& me) {
  const Overlap kept = overlap(step.from, me, step.to, me);
  action.pack.add(kept, action.in_shape, 0, action.out_shape, 0);
  action.packs = action.in_shape != action.out_shape;
  if (std::ranges::any_of(kept.runs, [](const auto& runs) { return runs.size() > 1; })) return;
  action.starts.emplace();
  for (const auto& runs : kept.runs) action.starts->push_back(runs.empty() ? 0 : runs[0].from);
}

void compile_all_gather(Action& action, const plan::Step& step, const Members& members) {
  int64_t slot = 0;
  std::vector<std::vector<int64_t>> shapes;
  for (const auto& coordinate : members.coordinates) {
    shapes.push_back(local_shape(step.from, coordinate));
    slot = std::max(slot, numel_of(shapes.back()));
  }
  action.send_numel = slot;
  action.receive_numel = slot * static_cast<int64_t>(members.size());
  action.packs = numel_of(action.in_shape) != slot;
  const Overlap all = overlap(step.from, members.coordinates[members.me], step.from,
                              members.coordinates[members.me]);
  action.pack.add(all, action.in_shape, 0, action.in_shape, 0);
  for (size_t m = 0; m < members.size(); ++m) {
    action.unpack.add(
        overlap(step.from, members.coordinates[m], step.to, members.coordinates[members.me]),
        shapes[m], slot * static_cast<int64_t>(m), action.out_shape, 0);
  }
  action.unpacks = !action.unpack.is_identity(numel_of(action.out_shape));
}

void compile_reduce_scatter(Action& action, const plan::Step& step, const Members& members) {
  int64_t slot = 0;
  std::vector<std::vector<int64_t>> shapes;
  for (const auto& coordinate : members.coordinates) {
    shapes.push_back(local_shape(step.to, coordinate));
    slot = std::max(slot, numel_of(shapes.back()));
  }
  action.receive_numel = slot;
  action.send_numel = slot * static_cast<int64_t>(members.size());
  for (size_t m = 0; m < members.size(); ++m) {
    action.pack.add(
        overlap(step.from, members.coordinates[members.me], step.to, members.coordinates[m]),
        action.in_shape, 0, shapes[m], slot * static_cast<int64_t>(m));
  }
  action.packs = !(numel_of(action.in_shape) == action.send_numel &&
                   action.pack.is_identity(action.send_numel));
}

void compile_all_to_all(Action& action, const plan::Step& step, const Members& members) {
  std::vector<Overlap> to_peer;
  std::vector<Overlap> from_peer;
  const Coordinate& me = members.coordinates[members.me];
  for (const auto& peer : members.coordinates) {
    to_peer.push_back(overlap(step.from, me, step.to, peer));
    from_peer.push_back(overlap(step.from, peer, step.to, me));
  }
  compile_exchange(action, to_peer, from_peer, members.me);
}

int64_t averaged_ranks(const plan::Step& step) {
  int64_t n = 1;
  for (int axis : step.axes) {
    const Placement& p = step.from.placement(axis);
    if (p.is_partial() && p.reduce_op() == ReduceOp::avg) n *= step.from.mesh().size(axis);
  }
  return n;
}

ReduceOp reduction_of(const plan::Step& step) {
  for (int axis : step.axes) {
    const Placement& p = step.from.placement(axis);
    if (p.is_partial()) return p.reduce_op() == ReduceOp::avg ? ReduceOp::sum : p.reduce_op();
  }
  return ReduceOp::sum;
}

void compile_local(Action& action, const plan::Step& step, const Coordinate& me) {
  if (step.move == plan::Move::slice) return compile_slice(action, step, me);
  for (int axis : step.axes) {
    const Placement& to = step.to.placement(axis);
    const int64_t n = step.to.mesh().size(axis);
    if (step.move == plan::Move::rescale) {
      (to.reduce_op() == ReduceOp::avg ? action.multiply_by : action.divide_by) *= n;
      continue;
    }
    action.reduce_op = to.reduce_op();
    // One rank keeps the value if the reduction would count it repeatedly, otherwise all do.
    const bool counts = to.reduce_op() == ReduceOp::sum || to.reduce_op() == ReduceOp::product ||
                        to.reduce_op() == ReduceOp::bxor;
    if (counts && me[static_cast<size_t>(axis)] != 0) action.keeps = false;
  }
}

Action compile_step(const plan::Step& step) {
  Action action;
  action.move = step.move;
  action.axis = axes_text(step.from.mesh(), step.axes);
  std::vector<int> ranks;
  if (step.move == plan::Move::transfer) {
    ranks = compile_transfer(action, step);
    action.axis = "transfer";
  } else {
    const Coordinate& me = *step.from.mesh().my_coordinate();
    action.in_shape = local_shape(step.from, me);
    action.out_shape = local_shape(step.to, me);
    if (plan::is_local(step.move)) {
      compile_local(action, step, me);
      return action;
    }
    const Members members = members_of(step.from.mesh(), step.axes);
    ranks = members.ranks;
    switch (step.move) {
      case plan::Move::all_gather:
        compile_all_gather(action, step, members);
        break;
      case plan::Move::reduce_scatter:
        compile_reduce_scatter(action, step, members);
        break;
      case plan::Move::all_to_all:
        compile_all_to_all(action, step, members);
        break;
      default:
        action.send_numel = action.receive_numel = numel_of(action.in_shape);
    }
    action.reduce_op = reduction_of(step);
    action.divide_by = averaged_ranks(step);
  }
  if (ranks.size() > 1) action.group = comm::world_of(step.from.mesh()).group(ranks);
  return action;
}

bool takes_part(const plan::Step& step) {
  return step.from.mesh().contains_me() || step.to.mesh().contains_me();
}

}  // namespace

std::shared_ptr<const Program> compile(const plan::Plan& plan) {
  require(plan.steps.empty() || plan.from.mesh().my_rank().has_value(), "redistribute ", plan.from,
          " to ", plan.to,
          ": the mesh was only parsed, so it has no ranks to move data between; make it with "
          "init_device_mesh");
  std::vector<Action> actions;
  for (const auto& step : plan.steps) {
    if (takes_part(step)) actions.push_back(compile_step(step));
  }
  return std::make_shared<const Program>(std::move(actions));
}

}  // namespace tessera::exec
