#include "tessera/plan/bound.h"

#include <algorithm>
#include <limits>
#include <queue>

namespace tessera::plan {
namespace {

constexpr double kFar = std::numeric_limits<double>::infinity();
/// Five axes of four kinds. Beyond, the table would cost more than it saves.
constexpr size_t kMaxStates = 1024;

/// Calls f(part) for each subset of the set, the empty one too.
template <typename F>
void for_each_part(AxisSet set, const F& f) {
  for_each_subset(set, f);
  f(AxisSet{0});
}

}  // namespace

/// Dijkstra backwards from the goal over the states. `to_` is the state at hand; the members
/// before_...() name the states from which one move leads there.
class LowerBound::Solver {
 public:
  explicit Solver(LowerBound& bound) : bound_(bound), problem_(bound.problem_) {}

  void solve(int goal) {
    relax(goal, 0);
    while (!open_.empty()) {
      const auto [left, number] = open_.top();
      open_.pop();
      to_ = number;
      here_ = bound_.states_[static_cast<size_t>(number)];
      if (left > here_.left) continue;
      for (int kind = 0; kind < kKinds; ++kind) {
        for_each_axis(here_.of[kind],
                      [&](int axis) { digit_here_[axis] = bound_.digit_[axis][kind]; });
      }
      before_local_moves();
      before_gathers(here_.of[whole], to_, 0);
      before_reductions(here_.of[whole], to_, 0);
      before_scatters(here_.of[other] | here_.of[placed], to_, 0);
      before_exchanges();
      before_losing_a_place();
    }
  }

 private:
  bool can(int axis, Kind kind) const { return bound_.digit_[axis][kind] >= 0; }
  /// `number` with another kind for an axis that is there as it is here.
  int with(int number, int axis, Kind kind) const {
    return number - digit_here_[axis] + bound_.digit_[axis][kind];
  }
  int64_t bytes(int number) const { return bound_.states_[static_cast<size_t>(number)].bytes; }

  void relax(int from, double cost) {
    State& state = bound_.states_[static_cast<size_t>(from)];
    const double left = here_.left + cost;
    if (left >= state.left || !state.exists) return;
    state.left = left;
    open_.emplace(left, from);
  }
  void relax(int from, Move move, AxisSet group) {
    relax(from, problem_.seconds(move, group, bytes(from), here_.bytes));
  }

  /// What is known to cut inside an axis at its start, besides those of `also` at theirs.
  AxisSet inside(int axis, AxisSet also) const {
    return (bound_.start_inside_[axis] & (here_.of[start] | also)) |
           (bound_.placed_inside_[axis] & here_.of[placed]);
  }

  void before_local_moves() {
    for_each_axis(here_.of[other] | here_.of[placed],
                  [&](int axis) { relax(with(to_, axis, whole), Move::slice, 0); });
    for_each_axis(here_.of[partial_from] | here_.of[partial_to],
                  [&](int axis) { relax(with(to_, axis, whole), Move::keep_one, 0); });
    for_each_axis(here_.of[partial_to], [&](int axis) {
      if (can(axis, partial_from) && problem_.can_rescale(axis)) {
        relax(with(to_, axis, partial_from), Move::rescale, 0);
      }
    });
  }

  // The next three take the axes of `rest` one by one, each into the group or not.

  void before_gathers(AxisSet rest, int from, AxisSet group) {
    if (group != 0) relax(from, Move::all_gather, group);
    for_each_axis(rest, [&](int axis) {
      const AxisSet later = rest & ~(only(axis + 1) - 1);
      for (Kind kind : {start, other, placed}) {
        // What is inside it and stays would have to go first.
        const bool blocked = kind == start && inside(axis, 0) != 0;
        if (can(axis, kind) && !blocked) {
          before_gathers(later, with(from, axis, kind), group | only(axis));
        }
      }
    });
  }

  void before_reductions(AxisSet rest, int from, AxisSet group) {
    if (group != 0) relax(from, Move::all_reduce, group);
    for_each_axis(rest, [&](int axis) {
      const AxisSet later = rest & ~(only(axis + 1) - 1);
      for (Kind kind : {partial_from, partial_to}) {
        if (can(axis, kind)) {
          before_reductions(later, with(from, axis, kind), group | only(axis));
        }
      }
    });
  }

  void before_scatters(AxisSet rest, int from, AxisSet group) {
    if (group != 0) relax(from, Move::reduce_scatter, group);
    for_each_axis(rest, [&](int axis) {
      const AxisSet later = rest & ~(only(axis + 1) - 1);
      for (Kind kind : {partial_from, partial_to}) {
        if (can(axis, kind)) before_scatters(later, with(from, axis, kind), group | only(axis));
      }
    });
  }

  /// One axis moves by itself, or all that are to shard the tensor find their places together. Those
  /// that are not to shard it leave their start then, to cut after them.
  void before_exchanges() {
    AxisSet to_be_placed = 0;
    for (int axis = 0; axis < problem_.axes(); ++axis) {
      if (can(axis, placed)) to_be_placed |= only(axis);
      const bool is_placed = has(here_.of[placed], axis);
      if (!is_placed && !has(here_.of[other], axis)) continue;
      if (can(axis, start)) before_exchange(with(to_, axis, start), only(axis), only(axis));
      if (is_placed) before_exchange(with(to_, axis, other), only(axis), 0);
    }
    if (here_.of[placed] == to_be_placed) {
      before_exchange_of_all(here_.of[placed] | here_.of[other], to_, 0, 0);
    }
  }

  void before_exchange_of_all(AxisSet rest, int from, AxisSet group, AxisSet at_start) {
    if (count(group) > 1) before_exchange(from, group, at_start);
    for_each_axis(rest, [&](int axis) {
      const AxisSet later = rest & ~(only(axis + 1) - 1);
      const AxisSet larger = group | only(axis);
      if (can(axis, start)) {
        before_exchange_of_all(later, with(from, axis, start), larger, at_start | only(axis));
      }
      if (has(here_.of[placed], axis)) {
        before_exchange_of_all(later, with(from, axis, other), larger, at_start);
      }
    });
  }

  /// What is inside an axis that leaves its start takes part.
  void before_exchange(int from, AxisSet group, AxisSet at_start) {
    for_each_axis(at_start, [&](int axis) { group |= inside(axis, at_start); });
    relax(from, Move::all_to_all, group);
  }

  /// When an axis leaves its place, those after it are out of place too, at no cost of theirs.
  void before_losing_a_place() {
    for_each_axis(here_.of[other], [&](int axis) {
      if (can(axis, placed)) relax(with(to_, axis, placed), 0);
    });
  }

  LowerBound& bound_;
  const Problem& problem_;
  using Entry = std::pair<double, int>;
  std::priority_queue<Entry, std::vector<Entry>, std::greater<>> open_;
  int to_ = 0;
  State here_;
  std::array<int, kMaxAxes> digit_here_{};
};

LowerBound::LowerBound(const Problem& problem)
    : problem_(problem),
      start_order_(orders_of(problem.start())),
      goal_order_(orders_of(problem.goal())) {
  list_kinds();
  list_states();
  if (!states_.empty()) Solver(*this).solve(state_of(problem.goal()));
}

LowerBound::Orders LowerBound::orders_of(const Layout& layout) const {
  Orders orders;
  for (int place = 0; place < problem_.axes(); ++place) {
    for (int axis = 0; axis < problem_.axes(); ++axis) {
      if (!is_shard(layout.code(axis)) || layout.place(axis) != place) continue;
      orders[problem_.letter(axis, layout.code(axis))].axes.push_back(axis);
    }
  }
  for (int l = 0; l < problem_.letters(); ++l) {
    Layout cut;
    orders[l].extents[0] = problem_.extent(cut, l);
    for (int axis : orders[l].axes) {
      cut.set_cell(axis, layout.cell(axis));
      orders[l].extents.push_back(problem_.extent(cut, l));
    }
  }
  return orders;
}

void LowerBound::list_kinds() {
  for (int l = 0; l < problem_.letters(); ++l) {
    const auto& order = start_order_[l].axes;
    AxisSet inside = 0;
    for (size_t i = order.size(); i-- > 0;) {
      start_inside_[order[i]] = inside;
      inside |= only(order[i]);
    }
    for (int axis : order) {
      for (int placed_axis : goal_order_[l].axes) {
        const bool may_be_outside = has(inside & ~start_inside_[axis], placed_axis);
        if (!may_be_outside) placed_inside_[axis] |= only(placed_axis);
      }
    }
  }
  size_t states = 1;
  for (int axis = 0; axis < problem_.axes(); ++axis) {
    const Code from = problem_.start().code(axis);
    const Code to = problem_.goal().code(axis);
    auto& kinds = kinds_[axis];
    kinds.push_back(whole);
    if (from == kPartialFrom) kinds.push_back(partial_from);
    if (to == kPartialTo) kinds.push_back(partial_to);
    if (is_shard(from)) kinds.push_back(start);
    if (problem_.letters() > 0) kinds.push_back(other);
    if (is_shard(to)) kinds.push_back(placed);
    digit_[axis].fill(-1);
    for (size_t i = 0; i < kinds.size(); ++i) {
      digit_[axis][kinds[i]] = static_cast<int>(states * i);
    }
    states *= kinds.size();
  }
  if (states <= kMaxStates) states_.resize(states);
}

void LowerBound::list_states() {
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

/// An axis is placed only after all that cut its dim before it.
bool LowerBound::exists(const State& state) const {
  for (int l = 0; l < problem_.letters(); ++l) {
    bool all = true;
    for (int axis : goal_order_[l].axes) {
      const bool is_placed = has(state.of[placed], axis);
      if (is_placed && !all) return false;
      all = is_placed;
    }
  }
  return true;
}

/// The axes that are known to cut a letter, and what is left after them at least: exact if they are
/// the first ones of one end of the problem.
LowerBound::Known LowerBound::known_cuts(const State& state, int letter) const {
  AxisSet at_start = 0;
  AxisSet leading = 0;  // as many as at_start, from the first on
  for (size_t i = 0; i < start_order_[letter].axes.size(); ++i) {
    if (!has(state.of[start], start_order_[letter].axes[i])) continue;
    leading |= only(start_order_[letter].axes[static_cast<size_t>(count(at_start))]);
    at_start |= only(start_order_[letter].axes[i]);
  }
  AxisSet in_place = 0;
  for (int axis : goal_order_[letter].axes) in_place |= state.of[placed] & only(axis);

  const AxisSet cuts = at_start | in_place;
  const auto after = [](const Order& order, AxisSet axes) {
    return order.extents[static_cast<size_t>(count(axes))];
  };
  if (at_start == 0) return {cuts, after(goal_order_[letter], in_place)};
  if (in_place == 0 && at_start == leading) return {cuts, after(start_order_[letter], at_start)};
  return {cuts, problem_.plain_extent(letter, cuts)};
}

/// The other axes may cut any letter: the best way to share them out, one letter after the other.
int64_t LowerBound::least_bytes(const State& state) const {
  constexpr int64_t kNoWay = INT64_MAX;
  std::array<int64_t, size_t{1} << kMaxAxes> least;
  const AxisSet others = state.of[other];
  for_each_part(others, [&](AxisSet part) { least[part] = part == 0 ? 1 : kNoWay; });
  for (int l = 0; l < problem_.letters(); ++l) {
    const Known known = known_cuts(state, l);
    // Larger sets first: the smaller ones are then still without this letter.
    for_each_part(others, [&](AxisSet set) {
      int64_t best = least[set] == kNoWay ? kNoWay : least[set] * known.extent;
      for_each_subset(set, [&](AxisSet mine) {
        const int64_t rest = least[set & ~mine];
        if (rest != kNoWay) {
          best = std::min(best, rest * problem_.plain_extent(l, known.cuts | mine));
        }
      });
      least[set] = best;
    });
  }
  return least[others] * problem_.fixed_bytes();
}

AxisSet LowerBound::placed_axes(const Layout& layout) const {
  AxisSet out = 0;
  for (int l = 0; l < problem_.letters(); ++l) {
    int last = -1;
    for (int axis : goal_order_[l].axes) {
      const bool right = layout.code(axis) == problem_.goal().code(axis);
      if (!right || layout.place(axis) < last) break;
      last = layout.place(axis);
      out |= only(axis);
    }
  }
  return out;
}

int LowerBound::state_of(const Layout& layout) const {
  const AxisSet in_place = placed_axes(layout);
  AxisSet at_start = 0;
  for (int l = 0; l < problem_.letters(); ++l) {
    int last = -1;
    for (int axis : start_order_[l].axes) {
      const bool same = layout.code(axis) == problem_.start().code(axis);
      if (!same || has(in_place, axis) || layout.place(axis) < last) continue;
      bool came_back = false;
      for_each_axis(placed_inside_[axis] & in_place,
                    [&](int inner) { came_back |= layout.place(inner) < layout.place(axis); });
      if (came_back) continue;
      last = layout.place(axis);
      at_start |= only(axis);
    }
  }
  int state = 0;
  for (int axis = 0; axis < problem_.axes(); ++axis) {
    const Code code = layout.code(axis);
    Kind kind = code == kPartialFrom ? partial_from : code == kPartialTo ? partial_to : whole;
    if (is_shard(code)) {
      kind = has(in_place, axis) ? placed : has(at_start, axis) ? start : other;
    }
    state += digit_[axis][kind];
  }
  return state;
}

double LowerBound::operator()(const Layout& layout) const {
  return states_.empty() ? coarse(layout) : states_[static_cast<size_t>(state_of(layout))].left;
}

/// The dearest of what each axis needs for itself: a merged move may serve them all.
double LowerBound::coarse(const Layout& layout) const {
  const AxisSet in_place = placed_axes(layout);
  double most = 0;
  for (int axis = 0; axis < problem_.axes(); ++axis) {
    const Code now = layout.code(axis);
    const Code then = problem_.goal().code(axis);
    const auto price = [&](Move move) { return problem_.seconds(move, only(axis), 0, 0); };
    if (is_shard(now) && is_shard(then)) {
      if (has(in_place, axis)) continue;
      most = std::max(most, std::min(price(Move::all_to_all), price(Move::all_gather)));
    } else if (is_shard(now)) {
      most = std::max(most, price(Move::all_gather));
    } else if (is_partial(now) && !is_partial(then)) {
      most = std::max(most, price(is_shard(then) ? Move::reduce_scatter : Move::all_reduce));
    }
  }
  return most;
}

}  // namespace tessera::plan
