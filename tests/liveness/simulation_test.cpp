// The simulated schedule that tests of protocols run on.
#include "tests/support/simulation.h"

#include <gtest/gtest.h>

#include "tests/liveness/simulated_ranks.h"
#include "tests/support_pure/expect_error.h"

namespace tessera::comm {
namespace simulation_test {

using test::Rng;

/// The order in which three threads get to say their number.
std::string order_of(uint64_t seed) {
  Rng rng(seed);
  Simulation simulation(rng);
  std::string order;
  for (int process = 0; process < 3; ++process) {
    simulation.spawn(process, [&, process] {
      for (int i = 0; i < 5; ++i) {
        order += std::to_string(process);
        simulation.step();
      }
    });
  }
  simulation.run();
  return order;
}

TEST(Simulation, TheSeedDecidesTheOrder) {
  EXPECT_EQ(order_of(7), order_of(7));
  EXPECT_NE(order_of(7), order_of(8));
}

TEST(Simulation, AnHourOfSleepTakesNoTime) {
  Rng rng(1);
  Simulation simulation(rng);
  const auto begin = std::chrono::steady_clock::now();
  simulation.spawn(0, [&] { Schedule::current().sleep_for(std::chrono::minutes(50)); });
  simulation.run();
  EXPECT_GE(simulation.elapsed(), std::chrono::minutes(50));
  EXPECT_LT(std::chrono::steady_clock::now() - begin, seconds(30));
}

TEST(Simulation, AThreadThatDoesNotEndIsAnError) {
  Rng rng(1);
  SimulatedRanks world(rng, 1);
  world.simulation.spawn(0, [&] {
    const auto store = world.store();
    while (!store->check({"never"})) world.simulation.sleep_for(seconds(1));
  });
  test::expect_error<std::runtime_error>([&] { world.simulation.run(std::chrono::minutes(10)); },
                                         {"still runs after 600 s"});
}

TEST(MemoryStore, KeepsTheRulesOfC10dStores) {
  Rng rng(1);
  SimulatedRanks world(rng, 1);
  world.simulation.spawn(0, [&] {
    const auto store = world.store();
    EXPECT_FALSE(store->check({"a"}));
    EXPECT_EQ(store->compareSet("a", "", "1"), "1");
    EXPECT_EQ(store->compareSet("a", "", "2"), "1");
    EXPECT_EQ(store->compareSet("a", "1", "2"), "2");
    EXPECT_EQ(store->add("n", 2), 2);
    EXPECT_EQ(store->clone()->add("n", 3), 5);
    EXPECT_EQ(store->get_to_str("a"), "2");
    EXPECT_TRUE(store->deleteKey("a"));
    EXPECT_THROW(store->wait({"a"}, seconds(3)), c10::DistStoreError);
    world.host->state = StoreHost::State::gone;
    EXPECT_THROW(store->check({"n"}), c10::DistNetworkError);
  });
  world.simulation.run();
}

/// A stopped process makes no request, and its thread ends with the simulation.
TEST(MemoryStore, AStoppedProcessSaysNothingMore) {
  Rng rng(1);
  SimulatedRanks world(rng, 2);
  world.stop_after(0, 3);
  world.simulation.spawn(0, [&] {
    const auto store = world.store();
    for (int i = 0; i < 10; ++i) store->add("n", 1);
  });
  world.simulation.spawn(1, [&] {
    const auto store = world.store();
    world.simulation.sleep_for(seconds(1));
    EXPECT_EQ(store->add("n", 0), 3);
  });
  world.simulation.run();
}

}  // namespace simulation_test
}  // namespace tessera::comm
