#include "tessera/partition/search/cost_network.h"

#include <gtest/gtest.h>

#include <limits>
#include <random>

namespace tessera::partition {
namespace cost_network_test {

CostNetwork::Table table(std::vector<double> costs) {
  return std::make_shared<const std::vector<double>>(std::move(costs));
}

double least_of_all(const CostNetwork& network) {
  std::vector<int> states(static_cast<size_t>(network.variables()), 0);
  double best = std::numeric_limits<double>::infinity();
  while (true) {
    best = std::min(best, network.cost_of(states));
    size_t v = 0;
    while (v < states.size() && ++states[v] == network.states(static_cast<int>(v))) states[v++] = 0;
    if (v == states.size()) return best;
  }
}

CostNetwork random_network(unsigned seed, int variables, int pairs, unsigned forbidden = 15,
                           unsigned most_states = 3) {
  std::mt19937 random(seed);
  CostNetwork network;
  for (int v = 0; v < variables; ++v) {
    network.add_variable(1 + static_cast<int>(random() % most_states));
    for (int s = 0; s < network.states(v); ++s) network.add(v, s, random() % 10);
  }
  for (int p = 0; p < pairs; ++p) {
    const int a = static_cast<int>(random() % static_cast<unsigned>(variables));
    const int b = static_cast<int>(random() % static_cast<unsigned>(variables));
    if (a == b) continue;
    std::vector<double> costs;
    for (int i = 0; i < network.states(a) * network.states(b); ++i)
      costs.push_back(random() % 100 < forbidden ? std::numeric_limits<double>::infinity()
                                                 : random() % 10);
    network.add(a, b, table(std::move(costs)));
  }
  return network;
}

TEST(CostNetwork, FindsTheLeastSum) {
  for (unsigned seed = 0; seed < 200; ++seed) {
    const CostNetwork network = random_network(seed, 7, 12);
    const Solution found = solve(network, {});
    EXPECT_TRUE(found.exact);
    EXPECT_EQ(found.cost, least_of_all(network)) << seed;
    if (found.cost < 1e9) {
      EXPECT_EQ(network.cost_of(found.states), found.cost);
    }
  }
}

// Where most pairs are forbidden, sums are looked up for the few states that remain.
TEST(CostNetwork, FindsTheLeastSumOfFewAllowed) {
  int possible = 0;
  for (unsigned seed = 0; seed < 300; ++seed) {
    const CostNetwork network = random_network(seed, 5, 6, 60, 6);
    const Solution found = solve(network, {});
    EXPECT_EQ(found.cost, least_of_all(network)) << seed;
    possible += found.cost < 1e9 ? 1 : 0;
  }
  EXPECT_GT(possible, 10);
}

TEST(CostNetwork, OfSomeStatesIsThatOfTheRest) {
  for (unsigned seed = 0; seed < 50; ++seed) {
    const CostNetwork network = random_network(seed, 7, 12);
    std::vector<std::vector<int>> keep;
    for (int v = 0; v < network.variables(); ++v) keep.push_back({network.states(v) - 1});
    keep[2] = {0};
    keep[3].insert(keep[3].begin(), 0);
    const Solution found = solve_within(network, keep, {});
    EXPECT_EQ(found.cost, network.cost_of(found.states)) << seed;
    EXPECT_EQ(found.states[2], 0);
  }
}

TEST(CostNetwork, SplitTablesGiveALowerBound) {
  int split = 0;
  for (unsigned seed = 0; seed < 200; ++seed) {
    const CostNetwork network = random_network(seed, 8, 20);
    const double least = least_of_all(network);
    const Solution found = solve(network, {.table = 6, .cells = 18});
    EXPECT_LE(found.lower_bound, least) << seed;
    EXPECT_GE(found.cost, least) << seed;
    split += found.exact ? 0 : 1;
  }
  EXPECT_GT(split, 50);
}

TEST(CostNetwork, RepeatedLayersAreSolvedOnce) {
  const auto costs = table({0, 3, 2, 1, 0, 4, 2, 2, 0});
  const auto cells = [&](int layers) {
    CostNetwork network;
    int last = network.add_variable(3);
    for (int i = 1; i < layers; ++i) {
      const int next = network.add_variable(3);
      network.add(last, next, costs);
      last = next;
    }
    return solve(network, {}).cells;
  };
  EXPECT_LT(cells(1000), 300);
  EXPECT_GT(cells(3), 10);
}

}  // namespace cost_network_test
}  // namespace tessera::partition
