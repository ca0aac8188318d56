// Who is alive, on simulated ranks: no live rank is taken for dead, and no dead one for alive.
#include "tessera/liveness/liveness_probe.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "tests/liveness/simulated_ranks.h"

namespace tessera::comm {
namespace liveness_probe_test {

using test::for_each_seed;
using test::Rng;

/// A process that answers until `until`, and the store it answers over.
void live(SimulatedRanks& world, int rank, milliseconds until) {
  world.simulation.spawn(rank, [&world, rank, until] {
    const LivenessProbe sign(world.board(), world.board(), rank);
    world.simulation.sleep_for(until);
  });
}

std::set<int> set_of(const std::vector<int>& ranks) { return {ranks.begin(), ranks.end()}; }

/// Ranks that were killed at a random request of theirs, that left, and that live; asked by one or
/// several others at once.
TEST(LivenessProbe, TellsTheLivingTheDeadAndThoseThatLeft) {
  for_each_seed(60, [](Rng& rng) {
    SimulatedRanks world(rng, rng.one_of<int>({2, 3, 5, 8, 34}),
                         {.most_delay_ms = rng.int_between(0, 20)});
    constexpr milliseconds kAsked = seconds(20);
    std::set<int> dead;
    std::set<int> left;
    for (const int rank : world.ranks) {
      const int fate = rng.int_between(0, 3);
      live(world, rank, fate == 1 ? world.random_time(seconds(10)) : seconds(45));
      if (fate == 1) left.insert(rank);
      if (fate != 0) continue;
      dead.insert(rank);
      world.simulation.spawn(rank, [&world, rank, when = world.random_time(seconds(15))] {
        world.simulation.sleep_for(when);
        world.simulation.stop(rank);
      });
    }
    const int askers = rng.int_between(1, 3);
    for (int asker = 0; asker < askers; ++asker) {
      world.simulation.spawn(1000 + asker, [&] {
        const auto board = world.board();
        world.simulation.sleep_for(kAsked + world.random_time(seconds(5)));
        const auto begin = world.simulation.elapsed();
        const auto probed = LivenessProbe::call(*board, world.ranks);
        EXPECT_EQ(set_of(probed.missing), dead);
        EXPECT_EQ(set_of(probed.left), left);
        EXPECT_LE(world.simulation.elapsed() - begin, LivenessProbe::kLongest + seconds(5));
      });
    }
    world.simulation.run();
  });
}

/// An asker that dies between two of its requests leaves the others able to ask and to answer.
TEST(LivenessProbe, AskersMayDieAtAnyRequest) {
  for_each_seed(300, [](Rng& rng) {
    SimulatedRanks world(rng, 3, {.most_delay_ms = 2});
    for (const int rank : world.ranks) live(world, rank, seconds(60));
    for (int asker = 0; asker < 4; ++asker) {
      world.simulation.spawn(100 + asker, [&, asker] {
        const auto board = world.board();
        world.simulation.sleep_for(seconds(2) + world.random_time(milliseconds(20)));
        world.stop_after(100 + asker, world.simulation.rng().int_between(1, 6));
        LivenessProbe::call(*board, world.ranks);
      });
    }
    world.simulation.spawn(200, [&] {
      const auto board = world.board();
      world.simulation.sleep_for(seconds(10));
      const auto probed = LivenessProbe::call(*board, world.ranks);
      EXPECT_EQ(set_of(probed.missing), std::set<int>{});
    });
    world.simulation.run();
  });
}

/// A stopped process that goes on answers again.
TEST(LivenessProbe, ARankThatGoesOnIsAliveAgain) {
  for_each_seed(50, [](Rng& rng) {
    SimulatedRanks world(rng, 4, {.most_delay_ms = 5});
    for (const int rank : world.ranks) live(world, rank, seconds(60));
    world.simulation.spawn(100, [&] {
      const auto board = world.board();
      world.simulation.sleep_for(seconds(5));
      world.simulation.stop(2);
      EXPECT_EQ(LivenessProbe::call(*board, world.ranks).missing, std::vector<int>{2});
      world.simulation.resume(2);
      EXPECT_EQ(LivenessProbe::call(*board, world.ranks).missing, std::vector<int>{});
    });
    world.simulation.run();
  });
}

TEST(LivenessProbe, ThoseThatAreDismissedSayNothingMore) {
  for_each_seed(50, [](Rng& rng) {
    SimulatedRanks world(rng, rng.int_between(2, 6), {.most_delay_ms = rng.int_between(0, 10)});
    for (const int rank : world.ranks) {
      world.simulation.spawn(rank, [&world, rank] {
        const LivenessProbe sign(world.board(), world.board(), rank);
        world.simulation.sleep_for(seconds(30));
        EXPECT_TRUE(sign.dismissed());
      });
    }
    world.simulation.spawn(100, [&] {
      const auto board = world.board();
      world.simulation.sleep_for(seconds(2));
      LivenessProbe::dismiss(*board, world.ranks);
      world.host->state = StoreHost::State::gone;
      EXPECT_LT(world.simulation.elapsed(), seconds(5));
    });
    world.simulation.run();
  });
}

/// Its destructor neither hangs nor throws when the store goes or loses connections.
TEST(LivenessProbe, EndsInTimeWhateverTheStoreDoes) {
  for_each_seed(150, [](Rng& rng) {
    SimulatedRanks world(rng, 3, {.most_delay_ms = 5, .lost_per_mille = rng.one_of<int>({0, 20})});
    for (const int rank : world.ranks) {
      world.simulation.spawn(rank, [&world, rank] {
        try {
          const LivenessProbe sign(world.board(), world.board(), rank);
          world.simulation.sleep_for(seconds(10));
        } catch (const c10::Error&) {  // the constructor speaks to the store
        }
        EXPECT_LT(world.simulation.elapsed(), seconds(20));
      });
    }
    world.simulation.spawn(100, [&] {
      world.simulation.sleep_for(world.random_time(seconds(12)));
      if (world.simulation.rng().chance(70)) world.host->state = StoreHost::State::gone;
    });
    world.simulation.run();
  });
}

}  // namespace liveness_probe_test
}  // namespace tessera::comm
