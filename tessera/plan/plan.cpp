#include "tessera/plan/plan.h"

#include <algorithm>
#include <array>

#include "tessera/base/errors.h"
#include "tessera/plan/canonical.h"
#include "tessera/plan/fuse.h"
#include "tessera/plan/search.h"
#include "tessera/plan/transfer.h"

namespace tessera::plan {
namespace {

constexpr std::array<std::string_view, 8> kMoveNames = {
    "slice",      "keep_one",       "rescale",    "all_gather",
    "all_reduce", "reduce_scatter", "all_to_all", "transfer"};

/// The group's axes in an order such that its ranks, row-major, hold consecutive pieces if
/// possible: the nesting order of the sharded side.
std::vector<int> group_axes(const Problem& problem, AxisSet group, const Step& step) {
  std::vector<bool> wanted(static_cast<size_t>(step.from.mesh().ndim()), false);
  for_each_axis(group,
                [&](int axis) { wanted[static_cast<size_t>(problem.mesh_axis(axis))] = true; });
  const bool splits = step.move == Move::slice || step.move == Move::reduce_scatter;
  std::vector<int> axes;
  const auto take = [&](int axis) {
    if (wanted[static_cast<size_t>(axis)]) axes.push_back(axis);
    wanted[static_cast<size_t>(axis)] = false;
  };
  for (int axis : (splits ? step.to : step.from).order()) take(axis);
  for (int axis = 0; axis < step.from.mesh().ndim(); ++axis) take(axis);
  return axes;
}

AxisSet changed_axes(const Problem& problem, const PathStep& step) {
  AxisSet changed = 0;
  for (int axis = 0; axis < problem.axes(); ++axis) {
    if (step.from.code(axis) != step.to.code(axis)) changed |= only(axis);
  }
  return changed;
}

bool same_ranks(const DeviceMesh& a, const DeviceMesh& b) {
  return a == b || (a.ndim() == b.ndim() && std::ranges::equal(a.ranks(), b.ranks()) &&
                    std::ranges::equal(a.axes(), b.axes(), {}, &MeshAxis::size, &MeshAxis::size));
}

/// The target's placements with the source's mesh, dtype and strides.
Sharding as_source(const Sharding& from, const Sharding& to) {
  const bool alike = from.mesh() == to.mesh() && from.dtype() == to.dtype() &&
                     std::ranges::equal(from.stride(), to.stride());
  if (alike) return to;
  return from.with_placements({to.placements().begin(), to.placements().end()}, to.order());
}

}  // namespace

std::vector<Step> steps_on_one_mesh(const Sharding& from, const Sharding& to,
                                    const cost::Machine& machine) {
  if (from == to) return {};
  const Problem problem(from, to, machine);
  Path path = fuse(problem, cheapest_path(problem));
  // The search does not model that local steps merge; if that matters, the simple path may win.
  Path rival = fuse(problem, path_through_replication(problem));
  if (path_seconds(problem, rival) < path_seconds(problem, path)) path = std::move(rival);

  std::vector<Step> steps;
  Sharding here = from;
  for (const auto& step : path) {
    Step made{step.move, {}, here, problem.sharding(step.to)};
    // Local moves list the axes they act on, so that exec knows which placements change.
    const AxisSet group = is_local(step.move) ? changed_axes(problem, step) : step.group;
    made.axes = group_axes(problem, group, made);
    const int64_t from_bytes = problem.local_bytes(step.from);
    const int64_t to_bytes = problem.local_bytes(step.to);
    made.seconds = problem.seconds(step.move, step.group, from_bytes, to_bytes);
    made.bytes = problem.bytes_sent(step.move, step.group, from_bytes, to_bytes);
    here = made.to;
    steps.push_back(std::move(made));
  }
  return steps;
}

std::string_view move_name(Move move) { return kMoveNames[static_cast<size_t>(move)]; }

bool is_local(Move move) {
  return move == Move::slice || move == Move::keep_one || move == Move::rescale;
}

std::string Step::to_text() const {
  std::string out(move_name(move));
  for (size_t i = 0; i < axes.size(); ++i) {
    out += join_text(i == 0 ? " over " : "x", from.mesh().axis_name(axes[i]));
  }
  if (move == Move::transfer) return join_text(out, "  ", from, " -> ", to);
  return join_text(out, "  ", from.placements_text(), " -> ", to.placements_text());
}

double Plan::seconds() const {
  double sum = 0;
  for (const auto& step : steps) sum += step.seconds;
  return sum;
}

int64_t Plan::bytes() const {
  int64_t sum = 0;
  for (const auto& step : steps) sum += step.bytes;
  return sum;
}

bool Plan::communicates() const {
  return std::ranges::any_of(steps, [](const Step& step) { return !is_local(step.move); });
}

std::string Plan::to_text() const {
  std::string out;
  for (const auto& step : steps) out += step.to_text() + "\n";
  return out.empty() ? "nothing to do\n" : out;
}

Plan make_plan(const Sharding& from, const Sharding& to, const cost::Machine& machine) {
  require(std::ranges::equal(from.shape(), to.shape()),
          "redistribution cannot change the shape: ", from, " -> ", to);
  if (!same_ranks(from.mesh(), to.mesh())) {
    return {from, to, steps_across_meshes(from, to, machine)};
  }
  // The same ranks in the same positions, possibly with other axis names: plan on the source's
  // mesh.
  return {from, to, steps_on_one_mesh(canonical(from), canonical(as_source(from, to)), machine)};
}

}  // namespace tessera::plan
