#include "tessera/plan/bound.h"

#include <algorithm>

namespace tessera::plan {

LowerBound::LowerBound(const Problem& problem)
    : problem_(problem),
      start_order_(orders_of(problem.start())),
      goal_order_(orders_of(problem.goal())) {
  list_insides();
  list_states();
  solve();
}

AxisSet LowerBound::placed_axes(const Layout& layout) const {
  AxisSet out = 0;
  for (int l = 0; l < problem_.slots(); ++l) {
    for (int axis : goal_order_[l]) {
      if (layout.cell(axis) != problem_.goal().cell(axis)) break;
      out |= only(axis);
    }
  }
  return out;
}

/// Axes that shard as in the source, in its order, with no axis before them that came later.
AxisSet LowerBound::start_axes(const Layout& layout, AxisSet in_place) const {
  AxisSet out = 0;
  for (int l = 0; l < problem_.slots(); ++l) {
    for (int axis : start_order_[l]) {
      const bool same = layout.code(axis) == problem_.start().code(axis);
      if (!same || has(in_place, axis)) continue;
      int before = 0;
      for_each_axis(outside_[axis] & (out | in_place), [&](int other) {
        const bool there = layout.code(other) == problem_.start().code(other);
        if (there && layout.place(other) < layout.place(axis)) ++before;
      });
      if (before == layout.place(axis)) out |= only(axis);
    }
  }
  return out;
}

int LowerBound::state_of(const Layout& layout) const {
  const AxisSet in_place = placed_axes(layout);
  const AxisSet at_start = knows_start_ ? start_axes(layout, in_place) : 0;
  int state = 0;
  for (int axis = 0; axis < problem_.axes(); ++axis) {
    const Code code = layout.code(axis);
    Kind kind = code == kPartialFrom ? partial_from : code == kPartialTo ? partial_to : whole;
    if (is_shard(code)) {
      const bool right = code == problem_.goal().code(axis) && digit_[axis][lined] >= 0;
      kind = has(in_place, axis) ? placed : has(at_start, axis) ? start : right ? lined : other;
    }
    state += digit_[axis][kind];
  }
  return state;
}

double LowerBound::operator()(const Layout& layout) const {
  return states_.empty() ? guess(layout) : states_[static_cast<size_t>(state_of(layout))].left;
}

/// The sum of what each axis would cost alone: not a bound but an estimate, weighted so that a path
/// is found soon.
double LowerBound::guess(const Layout& layout) const {
  const AxisSet in_place = placed_axes(layout);
  const int64_t bytes = problem_.local_bytes(layout);
  constexpr double kWeight = 4;
  double sum = 0;
  for (int axis = 0; axis < problem_.axes(); ++axis) {
    const Code now = layout.code(axis);
    const Code then = problem_.goal().code(axis);
    const auto price = [&](Move move) { return problem_.seconds(move, only(axis), bytes, bytes); };
    if (is_shard(now) && is_shard(then)) {
      if (!has(in_place, axis)) sum += std::min(price(Move::all_to_all), price(Move::all_gather));
    } else if (is_shard(now)) {
      sum += price(Move::all_gather);
    } else if (is_partial(now) && !is_partial(then)) {
      sum += price(is_shard(then) ? Move::reduce_scatter : Move::all_reduce);
    }
  }
  return kWeight * sum;
}

}  // namespace tessera::plan
