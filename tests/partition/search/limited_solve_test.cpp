#include "tessera/partition/search/limited_solve.h"

#include <gtest/gtest.h>

#include <limits>
#include <random>

namespace tessera::partition {
namespace limited_solve_test {

constexpr double kForbidden = std::numeric_limits<double>::infinity();

struct Problem {
  CostNetwork network;
  ByteLimit limit;
};

Problem random_problem(unsigned seed, int variables, int pairs) {
  std::mt19937 random(seed);
  Problem out;
  for (int v = 0; v < variables; ++v) {
    out.network.add_variable(1 + static_cast<int>(random() % 3));
    out.limit.bytes.emplace_back();
    for (int s = 0; s < out.network.states(v); ++s) {
      out.network.add(v, s, random() % 20);
      out.limit.bytes.back().push_back(random() % 2 == 0 ? 0 : random() % 30);
    }
  }
  for (int p = 0; p < pairs; ++p) {
    const int a = static_cast<int>(random() % static_cast<unsigned>(variables));
    const int b = static_cast<int>(random() % static_cast<unsigned>(variables));
    if (a == b) continue;
    std::vector<double> costs;
    for (int i = 0; i < out.network.states(a) * out.network.states(b); ++i)
      costs.push_back(random() % 100 < 15 ? kForbidden : random() % 20);
    out.network.add(a, b, std::make_shared<const std::vector<double>>(std::move(costs)));
  }
  out.limit.most = random() % 100;
  return out;
}

double bytes_of(const Problem& problem, const std::vector<int>& states) {
  double sum = 0;
  for (size_t v = 0; v < states.size(); ++v)
    sum += problem.limit.bytes[v][static_cast<size_t>(states[v])];
  return sum;
}

double least_within_limit(const Problem& problem) {
  std::vector<int> states(static_cast<size_t>(problem.network.variables()), 0);
  double best = kForbidden;
  while (true) {
    if (bytes_of(problem, states) <= problem.limit.most)
      best = std::min(best, problem.network.cost_of(states));
    size_t v = 0;
    while (v < states.size() && ++states[v] == problem.network.states(static_cast<int>(v)))
      states[v++] = 0;
    if (v == states.size()) return best;
  }
}

// The price decides how much is left out early, never what is found.
TEST(LimitedSolve, FindsTheLeastSumWithinTheLimit) {
  int possible = 0;
  for (unsigned seed = 0; seed < 300; ++seed) {
    const Problem problem = random_problem(seed, 7, 3 + static_cast<int>(seed % 10));
    const double least = least_within_limit(problem);
    for (const double price : {0.0, 0.3, 2.0}) {
      const auto found =
          solve_limited(problem.network, problem.limit, {.price = price, .below = 1e6});
      ASSERT_TRUE(found) << seed;
      ASSERT_EQ(found->cost, least) << seed << " price " << price;
      if (least == kForbidden) continue;
      ++possible;
      EXPECT_LE(bytes_of(problem, found->states), problem.limit.most) << seed;
      EXPECT_EQ(problem.network.cost_of(found->states), least) << seed;
    }
  }
  EXPECT_GT(possible, 300);
}

TEST(LimitedSolve, FindsOnlyWhatIsCheaperThanAsked) {
  int possible = 0;
  for (unsigned seed = 0; seed < 100; ++seed) {
    const Problem problem = random_problem(seed, 6, 8);
    const double least = least_within_limit(problem);
    if (least == kForbidden) continue;
    ++possible;
    const auto none = solve_limited(problem.network, problem.limit, {.price = 1, .below = least});
    ASSERT_TRUE(none);
    EXPECT_EQ(none->cost, kForbidden) << seed;
    const auto one =
        solve_limited(problem.network, problem.limit, {.price = 1, .below = least + 0.5});
    ASSERT_TRUE(one);
    EXPECT_EQ(one->cost, least) << seed;
  }
  EXPECT_GT(possible, 30);
}

TEST(LimitedSolve, GivesUpBeyondTheAllowedWork) {
  const Problem problem = random_problem(1, 12, 40);
  EXPECT_FALSE(solve_limited(problem.network, problem.limit, {.below = 1e6, .work = 10}));
}

TEST(LimitedSolve, OfSomeStatesKeepsTheirBytes) {
  const ByteLimit limit{{{1, 2, 3}, {4, 5}}, 7};
  const ByteLimit some = limit.restricted(std::vector<std::vector<int>>{{2, 0}, {1}});
  EXPECT_EQ(some.bytes, (std::vector<std::vector<double>>{{3, 1}, {5}}));
  EXPECT_EQ(some.most, 7);
}

}  // namespace limited_solve_test
}  // namespace tessera::partition
