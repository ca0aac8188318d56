#include "tessera/plan/search.h"

#include <algorithm>
#include <queue>

#include "tessera/base/errors.h"
#include "tessera/plan/bound.h"
#include "tessera/plan/visits.h"

namespace tessera::plan {
namespace {

/// More than there are layouts of a tensor of five dims on four axes.
constexpr size_t kMaxVisited = 20'000;

class Search {
 public:
  explicit Search(const Problem& problem) : problem_(problem), bound_(problem) {}

  Path run(SearchStats& stats) {
    best_ = path_through_replication(problem_);
    best_cost_ = path_seconds(problem_, best_);
    reach({.layout = problem_.start()});
    while (!open_.empty()) {
      const Open next = open_.top();
      open_.pop();
      if (next.estimate > static_cast<float>(best_cost_)) break;
      if (visits_[next.number].closed || !can_win(visits_[next.number])) continue;
      stats.gave_up = visits_.size() > kMaxVisited;
      if (stats.gave_up) break;
      ++stats.expanded;
      expand(next.number);
    }
    stats.visited = visits_.size();
    return best_;
  }

 private:
  struct Open {
    float estimate;  // rounded: the same moves in another order are to come out equal
    float cost;
    int number;
    /// The least estimate first; of equal ones the deepest, then the first found.
    bool operator<(const Open& other) const {
      if (estimate != other.estimate) return estimate > other.estimate;
      return cost != other.cost ? cost < other.cost : number > other.number;
    }
  };

  /// Not if it is only cheaper by what rounding does to sums.
  bool can_win(const Visit& visit) const {
    return visit.cost + visit.left < best_cost_ * (1 - 1e-13);
  }

  void expand(int number) {
    visits_[number].closed = true;
    const Visit from = visits_[number];
    const int64_t bytes = problem_.local_bytes(from.layout);
    edges_.clear();
    add_moves(problem_, from.layout, edges_);
    for (const Edge& edge : edges_) {
      // Reductions are priced by what they begin with.
      const bool reduces = edge.move == Move::all_reduce || edge.move == Move::reduce_scatter;
      const int64_t to_bytes = reduces ? bytes : problem_.local_bytes(edge.to);
      const double cost = from.cost + problem_.seconds(edge.move, edge.group, bytes, to_bytes);
      reach({edge.to, cost, 0, number, edge.move, static_cast<uint8_t>(edge.group)});
    }
  }

  void reach(Visit visit) {
    if (!can_win(visit)) return;
    if (visit.layout == problem_.goal()) return take(visit);
    int number = visits_.find(visit.layout);
    if (number != Visits::kNone && visits_[number].cost <= visit.cost) return;
    visit.left = number != Visits::kNone ? visits_[number].left : bound_(visit.layout);
    if (!can_win(visit)) return;
    if (number != Visits::kNone) {
      visits_[number] = visit;
    } else {
      number = visits_.add(visit);
    }
    open_.push(
        {static_cast<float>(visit.cost + visit.left), static_cast<float>(visit.cost), number});
  }

  void take(const Visit& goal) {
    best_cost_ = goal.cost;
    best_.clear();
    for (Visit visit = goal; visit.parent >= 0; visit = visits_[visit.parent]) {
      best_.push_back({visit.move, visit.group, visits_[visit.parent].layout, visit.layout});
    }
    std::ranges::reverse(best_);
  }

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
  // The last cuts come off first, and are made last.
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
