// The lower bound is never above what is really left, on every layout that the moves lead to.
#include "tessera/plan/bound.h"

#include <gtest/gtest.h>

#include <map>
#include <queue>
#include <vector>

#include "tessera/plan/canonical.h"
#include "tessera/plan/moves.h"
#include "tests/support_pure/random_problems.h"

namespace tessera::plan {
namespace bound_test {

using test::for_each_seed;
using test::Rng;

/// All layouts that can be reached from the start, and what is left from each to the goal.
class AllLayouts {
 public:
  explicit AllLayouts(const Problem& problem) : problem_(problem) {
    number(problem.start());
    for (size_t i = 0; i < layouts.size(); ++i) look_around(i);
    left.assign(layouts.size(), std::numeric_limits<double>::infinity());
    measure(number(problem.goal()));
  }

  std::vector<Layout> layouts;
  std::vector<double> left;

 private:
  size_t number(const Layout& layout) {
    const auto [it, is_new] = numbers_.try_emplace(layout.key(), layouts.size());
    if (is_new) {
      layouts.push_back(layout);
      before_.emplace_back();
    }
    return it->second;
  }

  void look_around(size_t from) {
    std::vector<Edge> edges;
    add_moves(problem_, layouts[from], edges);
    const int64_t bytes = problem_.local_bytes(layouts[from]);
    for (const auto& edge : edges) {
      if (!problem_.exists(edge.to)) continue;
      const size_t to = number(edge.to);
      before_[to].emplace_back(
          from, problem_.seconds(edge.move, edge.group, bytes, problem_.local_bytes(edge.to)));
    }
  }

  void measure(size_t goal) {
    using Entry = std::pair<double, size_t>;
    std::priority_queue<Entry, std::vector<Entry>, std::greater<>> open;
    left[goal] = 0;
    open.emplace(0, goal);
    while (!open.empty()) {
      const auto [cost, to] = open.top();
      open.pop();
      if (cost > left[to]) continue;
      for (const auto& [from, seconds] : before_[to]) {
        if (cost + seconds >= left[from]) continue;
        left[from] = cost + seconds;
        open.emplace(left[from], from);
      }
    }
  }

  const Problem& problem_;
  std::map<uint64_t, size_t> numbers_;
  std::vector<std::vector<std::pair<size_t, double>>> before_;
};

void expect_bound(Rng& rng, int axes, int dims) {
  const auto p = test::dense_problem(rng, {.axes = axes, .dims = dims});
  const Sharding from = canonical(p.from);
  const Sharding to = canonical(p.to);
  SCOPED_TRACE(join_text(from, "  ->  ", to));
  const Problem problem(from, to, p.machine);
  const LowerBound bound(problem);
  const AllLayouts all(problem);
  EXPECT_EQ(bound(problem.goal()), 0);
  for (size_t i = 0; i < all.layouts.size(); ++i) {
    ASSERT_LE(bound(all.layouts[i]), all.left[i] * (1 + 1e-12))
        << "at " << problem.sharding(all.layouts[i]).placements_text();
  }
}

TEST(LowerBound, IsNeverAboveWhatIsLeft) {
  for_each_seed(600, [](Rng& rng) { expect_bound(rng, rng.int_between(1, 3), 3); });
}

TEST(LowerBound, IsNeverAboveWhatIsLeftOnFourAxesAndFiveDims) {
  for_each_seed(20, [](Rng& rng) { expect_bound(rng, 4, rng.int_between(2, 5)); });
}

}  // namespace bound_test
}  // namespace tessera::plan
