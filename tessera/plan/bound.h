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

  /// False if there are too many states: then it is a guess, and a path found with it only good.
  bool is_exact() const { return !states_.empty(); }

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
    std::vector<int> axes;         // first cut first
    std::vector<int64_t> extents;  // after none, one, two, ... of them
    std::vector<size_t> firm;      // how many of so many there are up to the last ragged one
  };
  using Orders = std::array<Order, kMaxLetters>;

  /// What is known of the cuts of one letter.
  struct Known {
    AxisSet cuts;          // all
    AxisSet first;         // those that are before all others
    int64_t first_extent;  // after the first ones
    int64_t extent;        // after all, at least
    bool strided;          // some in place are strided, and none at its start or ragged
  };

  Orders orders_of(const Layout& layout) const;
  void list_insides();
  void list_odd();
  size_t list_kinds();
  void list_states();
  void solve();
  bool exists(const State& state) const;
  int64_t least_bytes(const State& state) const;
  Known known_cuts(const State& state, int letter) const;
  int64_t least_extent(const Known& known, int letter, AxisSet others) const;
  int64_t goal_extent(int letter, size_t many, AxisSet others) const;
  void insert_everywhere(const Layout& cut, int letter, int many, AxisSet others,
                         int64_t& least) const;
  AxisSet placed_axes(const Layout& layout) const;
  AxisSet start_axes(const Layout& layout, AxisSet in_place) const;
  int state_of(const Layout& layout) const;
  double guess(const Layout& layout) const;

  const Problem& problem_;
  Orders start_order_;  // by letter
  Orders goal_order_;
  // By axis at its start. Who comes to a dim cuts inside all that are there.
  std::array<AxisSet, kMaxAxes> outside_{};         // those that the source has outside it
  std::array<AxisSet, kMaxAxes> start_inside_{};    // inside it if at their start too
  std::array<AxisSet, kMaxAxes> placed_inside_{};   // inside it if placed
  AxisSet keep_code_ = 0;                           // of one code at both ends
  AxisSet strided_ = 0;                             // in the goal
  std::array<AxisSet, kMaxLetters> odd_here_{};     // by letter: odd on it at either end
  std::array<AxisSet, kMaxLetters> ragged_here_{};  // by letter: ragged on it at either end
  mutable std::array<std::vector<int64_t>, kMaxLetters> goal_extents_;  // found so far
  bool knows_start_ = true;  // false: there would be too many states
  /// A state's number has one digit for each axis: its kind among those that it can be of.
  std::array<std::vector<Kind>, kMaxAxes> kinds_;
  std::array<std::array<int, kKinds>, kMaxAxes> digit_{};  // times the digit's weight; -1: never
  std::vector<State> states_;                              // empty if there are too many
};

}  // namespace tessera::plan
