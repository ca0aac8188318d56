#include <algorithm>
#include <queue>
#include <span>

#include "tessera/plan/bound.h"

namespace tessera::plan {

/// Dijkstra's algorithm backwards from the goal over the states. `to_` is the current state; the
/// members before_...() enumerate the states from which one move leads to it.
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
      before_scatters(arrived(), to_, 0);
      before_exchanges();
      before_making_way();
      before_losing_a_place();
    }
  }

 private:
  bool can(int axis, Kind kind) const { return bound_.digit_[axis][kind] >= 0; }
  /// The axes that may have reached their current state by the last move.
  AxisSet arrived() const { return here_.of[other] | here_.of[lined] | here_.of[placed]; }
  /// The kind of an axis that shards as in the goal but is not placed.
  Kind astray(int axis) const { return can(axis, lined) ? lined : other; }
  /// `number` with another kind for an axis that has its current kind there.
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

  /// Axes known to be inside an axis at its start, including those of `also` at theirs.
  AxisSet inside(int axis, AxisSet also) const {
    return bound_.inside_[axis] & (here_.of[start] | also);
  }

  void before_local_moves() {
    for_each_axis(arrived(), [&](int axis) { relax(with(to_, axis, whole), Move::slice, 0); });
    for_each_axis(here_.of[partial_from] | here_.of[partial_to],
                  [&](int axis) { relax(with(to_, axis, whole), Move::keep_one, 0); });
    for_each_axis(here_.of[partial_to], [&](int axis) {
      if (can(axis, partial_from) && problem_.can_rescale(axis)) {
        relax(with(to_, axis, partial_from), Move::rescale, 0);
      }
    });
  }

  // The next three decide for each axis of `rest` whether it is in the group.

  void before_gathers(AxisSet rest, int from, AxisSet group) {
    if (group != 0) relax(from, Move::all_gather, group);
    for_each_axis(rest, [&](int axis) {
      const AxisSet later = rest & ~(only(axis + 1) - 1);
      for (Kind kind : {start, other, lined, placed}) {
        // Axes inside it that stay would have to be gathered first.
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

  /// One axis moves alone, or all that shard the tensor in the goal move to their places together.
  /// In the latter case axes that do not shard it in the goal leave their start and become
  /// innermost.
  void before_exchanges() {
    AxisSet to_be_placed = 0;
    for (int axis = 0; axis < problem_.axes(); ++axis) {
      if (can(axis, placed)) to_be_placed |= only(axis);
      if (!has(arrived(), axis)) continue;
      if (can(axis, start)) before_exchange(with(to_, axis, start), only(axis), only(axis));
      for (Kind kind : {other, lined}) {
        if (can(axis, kind) && !has(here_.of[kind], axis)) {
          before_exchange(with(to_, axis, kind), only(axis), 0);
        }
      }
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
      for (Kind kind : {other, lined}) {
        if (!has(here_.of[placed], axis) || !can(axis, kind)) continue;
        before_exchange_of_all(later, with(from, axis, kind), larger, at_start);
      }
    });
  }

  /// Axes inside one that leaves its start take part.
  void before_exchange(int from, AxisSet group, AxisSet at_start) {
    for_each_axis(at_start, [&](int axis) { group |= inside(axis, at_start); });
    relax(from, Move::all_to_all, group);
  }

  /// An axis that does not belong there (`stranger`) leaves its place before other axes of the dim,
  /// by an all_to_all, to become innermost or shard another dim; axes at the end of the goal's
  /// order are then placed.
  void before_making_way() {
    for (int l = 0; l < problem_.slots(); ++l) {
      const auto& order = bound_.goal_order_[l];
      size_t many = 0;
      while (many < order.size() && has(here_.of[placed], order[many])) ++many;
      const std::span in_place(order.data(), many);
      for_each_axis(many == 0 ? 0 : arrived(), [&](int stranger) {
        size_t end = many;
        if (std::ranges::find(in_place, stranger) != in_place.end()) --end;
        if (end != many && in_place[end] != stranger) return;
        AxisSet freed = 0;
        while (end-- > 0) {
          freed |= only(in_place[end]);
          before_freeing(stranger, freed, l);
        }
      });
    }
  }

  /// Each of `freed` was lined or, inside a `stranger` that is at its start, at its start. A ragged
  /// one can follow a `stranger` only in the latter case.
  void before_freeing(int stranger, AxisSet freed, int slot) {
    int from = to_;
    AxisSet ragged = 0;
    for_each_axis(freed, [&](int axis) {
      from = with(from, axis, astray(axis));
      if (problem_.is_ragged(axis, problem_.goal().code(axis))) ragged |= only(axis);
    });
    const AxisSet movers = freed | only(stranger);
    for (Kind kind : {other, lined}) {
      if (ragged == 0 && can(stranger, kind)) {
        relax(with(from, stranger, kind), Move::all_to_all, movers);
      }
    }
    const auto& at_slot = bound_.start_order_[slot];
    if (!can(stranger, start) || std::ranges::find(at_slot, stranger) == at_slot.end()) return;
    from = with(from, stranger, start);
    for_each_part(freed & bound_.inside_[stranger], [&](AxisSet at_start) {
      if ((ragged & ~at_start) != 0) return;
      int number = from;
      for_each_axis(at_start, [&](int axis) {
        number += bound_.digit_[axis][start] - bound_.digit_[axis][astray(axis)];
      });
      relax(number, Move::all_to_all, movers | inside(stranger, at_start));
    });
  }

  /// When an axis leaves its place, those after it are no longer placed either, at no cost of their
  /// own.
  void before_losing_a_place() {
    for_each_axis(here_.of[other] | here_.of[lined], [&](int axis) {
      if (can(axis, placed) && has(here_.of[astray(axis)], axis)) {
        relax(with(to_, axis, placed), 0);
      }
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

void LowerBound::solve() {
  if (!states_.empty()) Solver(*this).solve(state_of(problem_.goal()));
}

}  // namespace tessera::plan
