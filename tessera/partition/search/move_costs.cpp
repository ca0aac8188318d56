#include "tessera/partition/search/move_costs.h"

namespace tessera::partition {
namespace {

/// Whole values are made partial where an addend has to be; anything else is made whole first,
/// which no plan here has a use for.
bool makes_partial_of_parts(const Sharding& from, const Sharding& to) {
  for (int axis = 0; axis < to.mesh().ndim(); ++axis) {
    const Placement& target = to.placement(axis);
    const Placement& source = from.placement(axis);
    if (target.is_partial() && !source.is_replicate() && source != target) return true;
  }
  return false;
}

}  // namespace

const MoveCost& MoveCosts::operator()(const Sharding& from, const Sharding& to) {
  static const MoveCost nothing;
  if (from == to) return nothing;
  const auto [known, is_new] = known_.try_emplace({from.id(), to.id()});
  if (is_new) known->second = price(from, to);
  return known->second;
}

MoveCost MoveCosts::price(const Sharding& from, const Sharding& to) const {
  if (makes_partial_of_parts(from, to)) return {std::numeric_limits<double>::infinity(), 0, 0};
  const plan::Plan plan = plan::make_plan(from, to, machine_);
  MoveCost out{plan.seconds(), plan.bytes(), 0};
  for (const auto& step : plan.steps) out.collectives += plan::is_local(step.move) ? 0 : 1;
  return out;
}

}  // namespace tessera::partition
