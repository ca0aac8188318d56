// The end of a world of processes, on simulated ranks: all end in time, and none loses the store
// that it still needs.
#include "tessera/liveness/world_shutdown.h"

#include <gtest/gtest.h>

#include <set>

#include "tests/liveness/simulated_ranks.h"

namespace tessera::comm {
namespace world_shutdown_test {

using test::for_each_seed;
using test::Rng;
using BarrierResult = WorldShutdown::BarrierResult;

constexpr milliseconds kPatience = seconds(10);
/// How long the end of one rank may take in all: its patience for the others, again for the store
/// that it hosts, and the probes in between.
constexpr milliseconds kLongestEnd = 2 * kPatience + 3 * LivenessProbe::kLongest + seconds(10);

/// A rank of a world that ends: as ProcessWorld does it, without links.
class EndingRank {
 public:
  EndingRank(SimulatedRanks& world, int rank) : world_(world), rank_(rank) {
    const auto store = world.store();
    board_ = world.board();
    shutdown_ = std::make_shared<WorldShutdown>(WorldShutdown::Options{
        store, board_, std::make_unique<LivenessProbe>(world.board(), board_, rank), rank,
        world.size(), rank == 0, kPatience});
  }

  /// The store goes with the process that hosts it.
  BarrierResult end(bool fails) {
    const auto result = fails ? shutdown_->cancel_barrier() : shutdown_->arrive_and_wait();
    if (result != BarrierResult::none) shutdown_->leave({});
    shutdown_ = nullptr;
    if (rank_ == 0) world_.host->state = StoreHost::State::gone;
    return result;
  }

  c10d::Store& board() { return *board_; }

 private:
  SimulatedRanks& world_;
  int rank_;
  StorePtr board_;
  std::shared_ptr<WorldShutdown> shutdown_;
};

TEST(WorldShutdown, RanksThatEndWellWaitForEachOther) {
  for_each_seed(100, [](Rng& rng) {
    SimulatedRanks world(rng, rng.int_between(2, 6), {.most_delay_ms = rng.int_between(0, 20)});
    milliseconds last{0};
    for (const int rank : world.ranks) {
      const auto when = world.random_time(kPatience / 2);
      last = std::max(last, when);
      world.simulation.spawn(rank, [&, rank, when] {
        EndingRank ending(world, rank);
        world.simulation.sleep_for(when);
        EXPECT_EQ(ending.end(/*fails=*/false), BarrierResult::all_came);
        EXPECT_GE(world.simulation.elapsed(), last);
        EXPECT_LT(world.simulation.elapsed(), last + seconds(5));
      });
    }
    world.simulation.run();
  });
}

/// Ranks end well or fail, early or late, die, or meet a store that loses connections or stops.
TEST(WorldShutdown, EveryRankEndsInTime) {
  for_each_seed(150, [](Rng& rng) {
    SimulatedRanks world(
        rng, rng.int_between(2, 5),
        {.most_delay_ms = rng.int_between(0, 20), .lost_per_mille = rng.one_of<int>({0, 0, 10})});
    for (const int rank : world.ranks) {
      if (rng.chance(20)) world.stop_after(rank, rng.int_between(1, 40));
      world.simulation.spawn(rank, [&, rank] {
        std::unique_ptr<EndingRank> ending;
        try {
          ending = std::make_unique<EndingRank>(world, rank);
        } catch (const c10::Error&) {
          return;  // it never started
        }
        world.simulation.sleep_for(world.random_time(seconds(15)));
        const auto begin = world.simulation.elapsed();
        ending->end(rng.chance(30));
        if (!world.simulation.is_over()) {
          EXPECT_LT(world.simulation.elapsed() - begin, kLongestEnd);
        }
      });
    }
    if (rng.chance(20)) {
      world.simulation.spawn(100, [&] {
        world.simulation.sleep_for(world.random_time(seconds(20)));
        world.host->state = StoreHost::State::silent;
      });
    }
    world.simulation.run();
  });
}

/// Rank 0 fails and hosts the store; the others compute, and look why only then.
TEST(WorldShutdown, TheStoreStaysUntilThoseWhoLiveReadWhy) {
  for_each_seed(100, [](Rng& rng) {
    SimulatedRanks world(rng, rng.int_between(2, 5), {.most_delay_ms = rng.int_between(0, 20)});
    const int dead = rng.chance(50) ? world.size() - 1 : -1;
    for (const int rank : world.ranks) {
      world.simulation.spawn(rank, [&, rank] {
        EndingRank ending(world, rank);
        world.simulation.sleep_for(seconds(1));
        if (rank == dead && dead != 0) {
          world.simulation.stop(rank);
          world.simulation.step();
        }
        if (rank == 0) {
          PeerDiagnostics(world.board(), 0).post_failure("the disk is full");
        } else {
          world.simulation.sleep_for(world.random_time(kPatience - seconds(3)));
          const auto failure = PeerDiagnostics::first_failure(ending.board());
          EXPECT_TRUE(failure.has_value() || world.simulation.is_over());
        }
        ending.end(/*fails=*/true);
        if (!world.simulation.is_over()) {
          EXPECT_LT(world.simulation.elapsed(), kLongestEnd);
        }
      });
    }
    world.simulation.run();
  });
}

/// A process that hosts the store and dies takes it along.
TEST(WorldShutdown, NobodyWaitsForAStoreThatIsGone) {
  for_each_seed(50, [](Rng& rng) {
    SimulatedRanks world(rng, rng.int_between(2, 5), {.most_delay_ms = rng.int_between(0, 20)});
    for (const int rank : world.ranks) {
      world.simulation.spawn(rank, [&, rank] {
        EndingRank ending(world, rank);
        world.simulation.sleep_for(seconds(2));
        if (rank == 0) {
          world.host->state = StoreHost::State::gone;
          world.simulation.stop(0);
          world.simulation.step();
          return;
        }
        world.simulation.sleep_for(seconds(1));
        EXPECT_NE(ending.end(/*fails=*/false), BarrierResult::all_came);
        EXPECT_LT(world.simulation.elapsed(), seconds(15));
      });
    }
    world.simulation.run();
  });
}

}  // namespace world_shutdown_test
}  // namespace tessera::comm
