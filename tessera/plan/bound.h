#pragma once

#include <array>
#include <vector>

#include "tessera/plan/problem.h"

namespace tessera::plan {

/// A lower bound of what is left from a layout to the goal.
///
/// It is the exact answer to an easier question, in which an axis is only whole, partial, still
/// where it started, in its place in the goal, or sharded some other way; which way is forgotten,
/// and such axes always cut the tensor so as to leave the least. There are a few hundred such
/// states for four axes, all solved at once.
///
/// An axis is *placed* if it need not move again: the goal's axes before it cut its dim before it,
/// and nobody else does. A move of its own places it, an exchange of all, or the all_to_all of the
/// last stranger before it, in which it takes part. Axes are at their *start* if they shard as in
/// the source and come in the same order, with nobody before them who came later; they stay so
/// until they move. Where many cuts do not divide a dim, it also matters whether an axis cuts as in
/// the goal without being placed: then it is *lined* up. So no move of the real question is missing
/// in the easier one, and none costs more there.
class LowerBound {
 public:
  explicit LowerBound(const Problem& problem);

  double operator()(const Layout& layout) const;

  /// False if there are too many states: then it is a guess, and a path found with it only good.
  bool is_exact() const { return !states_.empty(); }

 private:
  enum Kind : uint8_t { whole, partial_from, partial_to, start, other, lined, placed };
  static constexpr int kKinds = 7;

  /// The axes by kind.
  struct State {
    std::array<AxisSet, kKinds> of{};
    bool exists = true;
    int64_t bytes = 0;  // the least that a layout of this state can have
    double left = 0;    // the answer
  };
  class Solver;

  /// The axes on each letter at one end of the problem, first cut first.
  using Orders = std::array<std::vector<int>, kMaxLetters>;

  /// What is known of the cuts of one letter: they come before all others.
  struct Known {
    AxisSet cuts;
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
  Known known_cuts(const State& state, int letter) const;
  int64_t least_extent(const Known& known, int letter, AxisSet others) const;
  AxisSet placed_axes(const Layout& layout) const;
  AxisSet start_axes(const Layout& layout, AxisSet in_place) const;
  int state_of(const Layout& layout) const;
  double guess(const Layout& layout) const;

  const Problem& problem_;
  Orders start_order_;  // by letter
  Orders goal_order_;
  // By axis at its start: those that the source has outside it and inside it.
  std::array<AxisSet, kMaxAxes> outside_{};
  std::array<AxisSet, kMaxAxes> inside_{};
  AxisSet keep_code_ = 0;    // sharded, and of one code at both ends
  bool knows_start_ = true;  // false: there would be too many states
  /// A state's number has one digit for each axis: its kind among those that it can be of.
  std::array<std::vector<Kind>, kMaxAxes> kinds_;
  std::array<std::array<int, kKinds>, kMaxAxes> digit_{};  // times the digit's weight; -1: never
  std::vector<State> states_;                              // empty if there are too many
};

}  // namespace tessera::plan
