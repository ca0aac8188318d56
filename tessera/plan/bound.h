#pragma once

#include <array>
#include <vector>

#include "tessera/plan/problem.h"

namespace tessera::plan {

/// Admissible heuristic for A*: the exact cost of a relaxed problem that tracks, per mesh axis, one
/// of seven states. In the examples the source is `dp=2,tp=2 : S0,P(sum)` and the goal `S1,S1`:
///
///   whole         replicated                                                tp: R
///   partial_from  Partial as in the source                                  tp: P(sum)
///   partial_to    Partial as in the goal, if that is another kind           (no example here)
///   start         sharded as in the source, not moved yet                   dp: S0
///   placed        sharded as in the goal, and never has to move again       dp: S1, first on dim 1
///   lined         shards the same dim as in the goal, not yet placed        tp: S1 before dp: S1
///   other         sharded in some other way, which one is not tracked       tp: S0
///
/// An axis is placed if exactly the axes that precede it on its dim in the goal shard that dim
/// before it. An axis is at its start if it shards as in the source, in the source's order, and no
/// axis that moved shards its dim before it. `lined` is tracked only if sizes do not divide evenly,
/// since only then does the order of axes change what a rank holds.
///
/// Cost of a state: axes in `other` are assumed to shard so as to leave the fewest bytes. Every
/// move of the real problem exists in the relaxed one at no higher cost, so the bound is
/// admissible. Four axes have a few hundred states; all of them are solved once, when the bound is
/// constructed.
class LowerBound {
 public:
  explicit LowerBound(const Problem& problem);

  double operator()(const Layout& layout) const;

  /// False if there are too many states to solve: the bound is then an estimate that may exceed the
  /// true cost, and a path found with it need not be the cheapest.
  bool is_exact() const { return !states_.empty(); }

 private:
  enum Kind : uint8_t { whole, partial_from, partial_to, start, other, lined, placed };
  static constexpr int kKinds = 7;

  /// The axes by kind.
  struct State {
    std::array<AxisSet, kKinds> of{};
    bool exists = true;
    int64_t bytes = 0;  // the fewest local bytes of any layout of this state
    double left = 0;    // the remaining cost: the answer
  };
  class Solver;

  /// The axes that shard each slot in the source or in the goal, outermost first.
  using Orders = std::array<std::vector<int>, kMaxSlots>;

  /// The known axes of one slot, which come before all others.
  struct Known {
    AxisSet axes;
    int64_t extent;  // after them
    AxisSet lined;   // those that come somewhere after them
  };

  Orders orders_of(const Layout& layout) const;
  void list_insides();
  size_t list_kinds();
  bool can_be_lined(int axis) const;
  void list_states();
  void solve();
  bool exists(const State& state) const;
  int64_t least_bytes(const State& state) const;
  Known known_shards(const State& state, int slot) const;
  int64_t least_extent(const Known& known, int slot, AxisSet others) const;
  AxisSet placed_axes(const Layout& layout) const;
  AxisSet start_axes(const Layout& layout, AxisSet in_place) const;
  int state_of(const Layout& layout) const;
  double guess(const Layout& layout) const;

  const Problem& problem_;
  Orders start_order_;  // by slot
  Orders goal_order_;
  // By axis at its start: the axes outside and inside it in the source.
  std::array<AxisSet, kMaxAxes> outside_{};
  std::array<AxisSet, kMaxAxes> inside_{};
  AxisSet keep_code_ = 0;    // sharded, with the same code in source and goal
  bool knows_start_ = true;  // false: there would be too many states
  /// A state's number has one digit per axis: its kind among those that the axis can have.
  std::array<std::vector<Kind>, kMaxAxes> kinds_;
  std::array<std::array<int, kKinds>, kMaxAxes> digit_{};  // times the digit's weight; -1: never
  std::vector<State> states_;                              // empty if there are too many
};

}  // namespace tessera::plan
