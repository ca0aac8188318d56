#include "tessera/plan/search.h"

#include <algorithm>
#include <limits>
#include <queue>

#include "tessera/base/errors.h"
#include "tessera/plan/bound.h"
#include "tessera/plan/visits.h"

namespace tessera::plan {
namespace {

/// More than the number of layouts of a tensor of five dims on four axes.
constexpr size_t kMaxExpanded = 10'000;
constexpr double kNever = std::numeric_limits<double>::infinity();

class Search {
 public:
  explicit Search(const Problem& problem) : problem_(problem), bound_(problem) {}

  Path run(SearchStats& stats) {
    best_ = path_through_replication(problem_);
    best_cost_ = path_seconds(problem_, best_);
    visit(problem_.goal());
    reach(visit(problem_.start()), {.cost = 0});
    stats = {};
    while (!open_.empty()) {
      const Open next = open_.top();
      open_.pop();
      if (next.rank >> 32 > Open::bits(best_cost_)) break;
      const Visit& visit = visits_[next.number];
      if (visit.closed || !can_win(visit.cost, visit)) continue;
      stats.gave_up = stats.expanded == kMaxExpanded;
      if (stats.gave_up) break;
      ++stats.expanded;
      expand(next.number);
    }
    stats.visited = visits_.size();
    return best_;
  }

 private:
  /// Least estimate first; among equal ones the deepest, then the first found. Both are rounded, so
  /// that the same moves in another order compare equal, and compared by their bits.
  struct Open {
    uint64_t rank;
    int number;

    Open(double estimate, double cost, int number_)
        : rank(uint64_t{bits(estimate)} << 32 | ~bits(cost)), number(number_) {}
    bool operator<(const Open& other) const {
      return rank != other.rank ? rank > other.rank : number > other.number;
    }
    static uint32_t bits(double x) { return std::bit_cast<uint32_t>(static_cast<float>(x)); }
  };

  /// A path to a layout: its cost and its last step.
  struct Way {
    double cost;
    int parent = -1;
    Move move = Move::slice;
    AxisSet group = 0;
  };

  int visit(const Layout& layout) {
    return visits_.number(layout, [&](Visit& visit) {
      visit.left = problem_.exists(layout) ? bound_(layout) : kNever;
      if (visit.left != kNever) visit.bytes = problem_.local_bytes(layout);
    });
  }

  /// False if it is cheaper only by rounding errors of sums.
  bool can_win(double cost, const Visit& visit) const {
    return cost + visit.left < best_cost_ * (1 - 1e-13);
  }

  void expand(int number) {
    visits_[number].closed = true;
    const Visit from = visits_[number];
    edges_.clear();
    add_moves(problem_, from.layout, edges_, settled(from));
    for (const Edge& edge : edges_) {
      const int to = visit(edge.to);
      const Visit& there = visits_[to];
      const double cost =
          from.cost + problem_.seconds(edge.move, edge.group, from.bytes, there.bytes);
      if (cost < there.cost) reach(to, {cost, number, edge.move, edge.group});
    }
  }

  /// The axes for which another all_to_all is useless, because their last move could have led to
  /// the same layout at no higher cost.
  AxisSet settled(const Visit& visit) const {
    if (visit.move == Move::reduce_scatter) return visit.group;
    if (visit.move == Move::all_to_all) return count(visit.group) == 1 ? visit.group : 0;
    if (visit.move != Move::slice || visit.parent < 0) return 0;
    AxisSet sliced = 0;
    for (int axis = 0; axis < problem_.axes(); ++axis) {
      const bool was_whole = visits_[visit.parent].layout.code(axis) == kReplicate;
      if (was_whole && visit.layout.code(axis) != kReplicate) sliced = only(axis);
    }
    const double slice_s = problem_.byte_seconds(Move::slice, 0);
    return slice_s <= problem_.byte_seconds(Move::all_to_all, sliced) ? sliced : 0;
  }

  /// Records a cheaper path than all before.
  void reach(int number, const Way& way) {
    Visit& visit = visits_[number];
    if (!can_win(way.cost, visit)) return;
    visit.cost = way.cost;
    visit.parent = way.parent;
    visit.move = way.move;
    visit.group = static_cast<uint8_t>(way.group);
    visit.closed = false;
    if (number == kGoal) return take();
    open_.emplace(visit.cost + visit.left, visit.cost, number);
  }

  void take() {
    best_cost_ = visits_[kGoal].cost;
    best_.clear();
    for (int to = kGoal; visits_[to].parent >= 0; to = visits_[to].parent) {
      const Visit& visit = visits_[to];
      best_.push_back({visit.move, visit.group, visits_[visit.parent].layout, visit.layout});
    }
    std::ranges::reverse(best_);
  }

  static constexpr int kGoal = 0;

  const Problem& problem_;
  const LowerBound bound_;
  Visits visits_;
  std::vector<Edge> edges_;
  std::priority_queue<Open> open_;
  Path best_;
  double best_cost_ = 0;
};

}  // namespace

double path_seconds(const Problem& problem, const Path& path) {
  double sum = 0;
  for (const auto& step : path) {
    sum += problem.seconds(step.move, step.group, problem.local_bytes(step.from),
                           problem.local_bytes(step.to));
  }
  return sum;
}

Path path_through_replication(const Problem& problem) {
  Path path;
  Layout layout = problem.start();
  const auto take = [&](Move move, AxisSet group, int axis, uint8_t cell) {
    Layout to = layout;
    to.set_cell(axis, cell);
    path.push_back({move, group, layout, to});
    layout = to;
  };
  // Innermost axes are gathered first and sharded last.
  for (int place = problem.axes(); place-- > 0;) {
    for (int axis = problem.axes(); axis-- > 0;) {
      const Code code = layout.code(axis);
      if (code == kReplicate || layout.place(axis) != place) continue;
      take(is_partial(code) ? Move::all_reduce : Move::all_gather, only(axis), axis, kReplicate);
    }
  }
  for (int place = 0; place < problem.axes(); ++place) {
    for (int axis = 0; axis < problem.axes(); ++axis) {
      const Code code = problem.goal().code(axis);
      if (code == kReplicate || problem.goal().place(axis) != place) continue;
      const Move move = is_partial(code) ? Move::keep_one : Move::slice;
      take(move, 0, axis, problem.goal().cell(axis));
    }
  }
  ensure(layout == problem.goal(), "the path through replication misses its goal");
  return path;
}

Path cheapest_path(const Problem& problem, SearchStats* stats) {
  SearchStats unasked;
  if (problem.start() == problem.goal()) return {};
  return Search(problem).run(stats != nullptr ? *stats : unasked);
}

}  // namespace tessera::plan
