// The states of the relaxed problem: which exist, and the fewest bytes that a layout of each can
// have.
#include <algorithm>
#include <limits>

#include "tessera/plan/bound.h"

namespace tessera::plan {
namespace {

constexpr double kFar = std::numeric_limits<double>::infinity();
/// Six axes of four kinds, or eight of three. Beyond that, the table would take tens of
/// milliseconds.
constexpr size_t kMaxStates = 8192;

}  // namespace

LowerBound::Orders LowerBound::orders_of(const Layout& layout) const {
  Orders orders;
  for (int place = 0; place < problem_.axes(); ++place) {
    for (int axis = 0; axis < problem_.axes(); ++axis) {
      if (!is_shard(layout.code(axis)) || layout.place(axis) != place) continue;
      orders[problem_.slot(axis, layout.code(axis))].push_back(axis);
    }
  }
  return orders;
}

void LowerBound::list_insides() {
  for (int l = 0; l < problem_.slots(); ++l) {
    AxisSet outside = 0;
    AxisSet on_slot = 0;
    for (int axis : start_order_[l]) on_slot |= only(axis);
    for (int axis : start_order_[l]) {
      outside_[axis] = outside;
      inside_[axis] = on_slot & ~outside & ~only(axis);
      outside |= only(axis);
      if (problem_.start().code(axis) == problem_.goal().code(axis)) keep_code_ |= only(axis);
    }
  }
}

/// If sizes divide evenly, a lined axis leaves no more than any other, and a ragged table does not
/// apply out of its place. Tracking it matters if three or more axes shard one dim in the goal;
/// states for all others, or on more axes, would cost more than they save.
bool LowerBound::can_be_lined(int axis) const {
  const Code code = problem_.goal().code(axis);
  if (!is_shard(code) || problem_.is_ragged(axis, code) || problem_.axes() > 4) return false;
  const int l = problem_.slot(axis, code);
  if (goal_order_[l].size() < 3) return false;
  AxisSet axes = 0;
  for (int other : goal_order_[l]) axes |= only(other);
  return problem_.plain_extent(l, axes) * problem_.ranks(axes) != problem_.plain_extent(l, 0);
}

/// Returns the number of states.
size_t LowerBound::list_kinds() {
  size_t states = 1;
  for (int axis = 0; axis < problem_.axes(); ++axis) {
    const Code from = problem_.start().code(axis);
    const Code to = problem_.goal().code(axis);
    auto& kinds = kinds_[axis];
    kinds = {whole};
    if (from == kPartialFrom) kinds.push_back(partial_from);
    if (to == kPartialTo) kinds.push_back(partial_to);
    if (is_shard(from) && knows_start_) kinds.push_back(start);
    if (problem_.slots() > 0) kinds.push_back(other);
    if (can_be_lined(axis)) kinds.push_back(lined);
    if (is_shard(to)) kinds.push_back(placed);
    digit_[axis].fill(-1);
    for (size_t i = 0; i < kinds.size(); ++i) {
      digit_[axis][kinds[i]] = static_cast<int>(states * i);
    }
    states *= kinds.size();
  }
  return states;
}

void LowerBound::list_states() {
  size_t count = list_kinds();
  if (count > kMaxStates) {
    knows_start_ = false;
    count = list_kinds();
  }
  if (count > kMaxStates) return;
  states_.resize(count);
  std::array<size_t, kMaxAxes> digits{};
  for (auto& state : states_) {
    for (int axis = 0; axis < problem_.axes(); ++axis) {
      state.of[kinds_[axis][digits[axis]]] |= only(axis);
    }
    state.left = kFar;
    state.exists = exists(state);
    if (state.exists) state.bytes = least_bytes(state);
    for (int axis = 0; axis < problem_.axes() && ++digits[axis] == kinds_[axis].size(); ++axis) {
      digits[axis] = 0;
    }
  }
}

/// An axis is placed only after all that shard its dim before it. Axes at their start follow placed
/// ones only if those never moved either; a ragged one, only while all that precede it are there.
bool LowerBound::exists(const State& state) const {
  for (int l = 0; l < problem_.slots(); ++l) {
    bool all = true;
    AxisSet in_place = 0;
    for (int axis : goal_order_[l]) {
      const bool is_placed = has(state.of[placed], axis);
      if (is_placed && !all) return false;
      all = is_placed;
      if (is_placed) in_place |= only(axis);
    }
    for (int axis : start_order_[l]) {
      if (!has(state.of[start], axis)) continue;
      if ((in_place & ~(outside_[axis] & keep_code_)) != 0) return false;
      const AxisSet left = outside_[axis] & ~(state.of[start] | in_place);
      if (left != 0 && problem_.is_ragged(axis, problem_.start().code(axis))) return false;
    }
  }
  return true;
}

/// Placed axes come first, then those at their start, then all others.
LowerBound::Known LowerBound::known_shards(const State& state, int slot) const {
  Layout known;
  AxisSet axes = 0;
  const auto take = [&](int axis, Code code) {
    known.set(axis, code, count(axes));
    axes |= only(axis);
  };
  for (int axis : goal_order_[slot]) {
    if (has(state.of[placed], axis)) take(axis, problem_.goal().code(axis));
  }
  for (int axis : start_order_[slot]) {
    if (has(state.of[start], axis)) take(axis, problem_.start().code(axis));
  }
  AxisSet in_goal = 0;
  for (int axis : goal_order_[slot]) in_goal |= only(axis);
  return {axes, problem_.extent(known, slot), state.of[lined] & in_goal};
}

/// The extent after the known axes is divided among the ranks of the remaining ones.
int64_t LowerBound::least_extent(const Known& known, int slot, AxisSet others) const {
  const AxisSet after = known.lined | others;
  const int64_t rest = problem_.ranks(after);
  return std::max(problem_.plain_extent(slot, known.axes | after),
                  (known.extent + rest - 1) / rest);
}

/// The other axes may shard any slot: finds their best assignment, slot by slot.
int64_t LowerBound::least_bytes(const State& state) const {
  constexpr int64_t kNoWay = INT64_MAX;
  std::array<int64_t, size_t{1} << kMaxAxes> least;
  const AxisSet others = state.of[other];
  for_each_part(others, [&](AxisSet part) { least[part] = part == 0 ? 1 : kNoWay; });
  for (int l = 0; l < problem_.slots(); ++l) {
    const Known known = known_shards(state, l);
    const int64_t alone = least_extent(known, l, 0);
    // Larger sets first: the smaller ones do not include this slot yet.
    for_each_part(others, [&](AxisSet set) {
      int64_t best = least[set] == kNoWay ? kNoWay : least[set] * alone;
      for_each_subset(set, [&](AxisSet mine) {
        const int64_t rest = least[set & ~mine];
        if (rest != kNoWay) best = std::min(best, rest * least_extent(known, l, mine));
      });
      least[set] = best;
    });
  }
  return least[others] * problem_.fixed_bytes();
}

}  // namespace tessera::plan
