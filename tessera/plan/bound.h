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
/// An axis is *placed* if it need not move again: the goal's axes before it cut its dim before it.
/// Only a move of its own, or an exchange of all, can place it. Axes are at their *start* if they
/// shard as in the source and come in the same order; they stay so until they move. So no move of
/// the real question is missing in the easier one, and none costs more there.
class LowerBound {
 public:
  explicit LowerBound(const Problem& problem);

  double operator()(const Layout& layout) const;

 private:
  enum Kind : uint8_t { whole, partial_from, partial_to, start, other, placed };
  static constexpr int kKinds = 6;

  /// The axes by kind.
  struct State {
    std::array<AxisSet, kKinds> of{};
    bool exists = true;
    int64_t bytes = 0;  // the least that a layout of this state can have
    double left = 0;    // the answer
  };
  class Solver;

  /// The axes on one dim at one end of the problem.
  struct Order {
    std::vector<int> axes;            // first cut first
    std::vector<int64_t> extents{0};  // after none, one, two, ... of them
  };
  using Orders = std::array<Order, kMaxLetters>;

  Orders orders_of(const Layout& layout) const;
  void list_kinds();
  void list_states();
  bool exists(const State& state) const;
  int64_t least_bytes(const State& state) const;
  struct Known {
    AxisSet cuts;
    int64_t extent;
  };
  Known known_cuts(const State& state, int letter) const;
  int state_of(const Layout& layout) const;
  double coarse(const Layout& layout) const;
  AxisSet placed_axes(const Layout& layout) const;

  const Problem& problem_;
  Orders start_order_;  // by letter
  Orders goal_order_;
  /// By axis at its start: those at their start that are inside it, and those that are inside it if
  /// they are placed (who comes to a dim cuts inside all that are there).
  std::array<AxisSet, kMaxAxes> start_inside_{};
  std::array<AxisSet, kMaxAxes> placed_inside_{};
  /// A state's number has one digit for each axis: its kind among those that it can be of.
  std::array<std::vector<Kind>, kMaxAxes> kinds_;
  std::array<std::array<int, kKinds>, kMaxAxes> digit_{};  // times the digit's weight; -1: never
  std::vector<State> states_;                              // empty if there are too many
};

}  // namespace tessera::plan
