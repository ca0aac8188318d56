#include "tessera/partition/search/dual_ascent.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>

namespace tessera::partition {
namespace dual_ascent_test {

constexpr double kForbidden = std::numeric_limits<double>::infinity();

/// `pairs` of any variables, or each with the one before it: a chain with branches.
CostNetwork random_costs(unsigned seed, int variables, int pairs, bool tree) {
  std::mt19937 random(seed);
  const auto below = [&](int n) { return static_cast<int>(random() % static_cast<unsigned>(n)); };
  CostNetwork network;
  for (int v = 0; v < variables; ++v) {
    network.add_variable(1 + below(4));
    for (int s = 0; s < network.states(v); ++s) network.add(v, s, below(100) / 7.0);
  }
  for (int p = 0; p < pairs; ++p) {
    const int a = tree ? p + 1 : below(variables);
    const int b = tree ? below(p + 1) : below(variables);
    if (a == b) continue;
    std::vector<double> costs;
    for (int i = 0; i < network.states(a) * network.states(b); ++i)
      costs.push_back(below(100) < 10 ? kForbidden : below(100) / 3.0);
    network.add(a, b, std::make_shared<const std::vector<double>>(std::move(costs)));
  }
  return network;
}

TEST(DualAscent, IsNeverAboveTheLeastSum) {
  int possible = 0;
  for (unsigned seed = 0; seed < 300; ++seed) {
    const CostNetwork network = random_costs(seed, 9, 14, false);
    const Solution least = solve(network, {});
    if (!std::isfinite(least.cost)) continue;
    ++possible;
    DualAscent ascent(network, least.cost * 1.5 + 1);
    double before = -kForbidden;
    for (int round = 0; round < 30; ++round) {
      ascent.round();
      EXPECT_LE(ascent.bound(), least.cost + 1e-9) << seed;
      EXPECT_GE(ascent.bound(), before) << seed;
      before = ascent.bound();
      // The best choice is among the states that are left.
      const auto left = ascent.states_below(least.cost + 1e-9);
      for (size_t v = 0; v < left.size(); ++v) ASSERT_FALSE(left[v].empty()) << seed;
      EXPECT_NEAR(solve_within(network, left, {}).cost, least.cost, 1e-9) << seed;
      EXPECT_GE(network.cost_of(ascent.decode()), least.cost - 1e-9);
    }
  }
  EXPECT_GT(possible, 100);
}

TEST(DualAscent, OfATreeIsTheLeastSum) {
  for (unsigned seed = 0; seed < 100; ++seed) {
    const CostNetwork network = random_costs(seed, 12, 11, true);
    const Solution least = solve(network, {});
    if (!std::isfinite(least.cost)) continue;
    DualAscent ascent(network, least.cost + 1);
    for (int round = 0; round < 200; ++round) ascent.round();
    EXPECT_NEAR(ascent.bound(), least.cost, 1e-6 * (1 + least.cost)) << seed;
  }
}

TEST(DualAscent, GoesOnWithOtherCostsOfSingleVariables) {
  for (unsigned seed = 0; seed < 100; ++seed) {
    CostNetwork network = random_costs(seed, 8, 12, false);
    const Solution first = solve(network, {});
    if (!std::isfinite(first.cost)) continue;
    DualAscent ascent(network, 10 * first.cost + 100);
    for (int round = 0; round < 10; ++round) ascent.round();
    for (int v = 0; v < network.variables(); v += 2) network.add(v, 0, 5);
    ascent.set_unary(network);
    const Solution least = solve(network, {});
    for (int round = 0; round < 10; ++round) {
      ascent.round();
      EXPECT_LE(ascent.bound(), least.cost + 1e-9) << seed;
      const auto left = ascent.states_below(least.cost + 1e-9);
      EXPECT_NEAR(solve_within(network, left, {}).cost, least.cost, 1e-9) << seed;
    }
  }
}

}  // namespace dual_ascent_test
}  // namespace tessera::partition
