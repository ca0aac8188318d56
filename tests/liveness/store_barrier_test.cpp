// Barriers over a store, on simulated ranks: they end in time, with the same outcome for all.
#include "tessera/liveness/store_barrier.h"

#include <gtest/gtest.h>

#include <set>

#include "tessera/base/errors.h"
#include "tests/liveness/simulated_ranks.h"

namespace tessera::comm {
namespace store_barrier_test {

using test::for_each_seed;
using test::Rng;

struct Result {
  bool ended = false;
  bool same = false;
  std::string error;
  milliseconds when{0};
};

constexpr milliseconds kTimeout = seconds(5);

/// Barriers of one rank each; what the others see of it is on the store alone.
class Barrier {
 public:
  Barrier(Rng& rng, int size, StoreHost::Faults faults = {})
      : world(rng, size, faults), results(world.ranks.size()) {}

  void attend_at(int rank, milliseconds when, std::string word = "word") {
    world.simulation.spawn(rank, [this, rank, when, word = std::move(word)] {
      const auto store = world.store();
      const auto board = world.board();
      world.simulation.sleep_for(when);
      Result result;
      try {
        result.same = meeting(rank, *store, *board).arrive_and_wait(word);
      } catch (const PeerError& e) {
        result.error = e.what();
      }
      result.ended = true;
      result.when = world.simulation.elapsed();
      if (!world.simulation.is_over()) results[static_cast<size_t>(rank)] = result;
    });
  }

  StoreBarrier meeting(int rank, c10d::Store& store, c10d::Store& board) {
    return {store, "here", "the test", world.ranks, rank, kTimeout, board};
  }

  const Result& of(int rank) const { return results[static_cast<size_t>(rank)]; }

  SimulatedRanks world;
  std::vector<Result> results;
};

/// The ranks that "rank(s) 1,3 did not arrive" names.
std::set<int> named(const std::string& error) {
  constexpr std::string_view kBefore = "rank(s) ";
  std::set<int> ranks;
  const size_t begin = error.find(kBefore);
  if (begin == std::string::npos) return ranks;
  std::istringstream list(error.substr(begin + kBefore.size(), error.find(" did not") - begin));
  for (int rank = 0; list >> rank; list.get()) ranks.insert(rank);
  return ranks;
}

TEST(StoreBarrier, EndsWhenTheLastRankComes) {
  for_each_seed(100, [](Rng& rng) {
    Barrier barrier(rng, rng.int_between(1, 8), {.most_delay_ms = rng.int_between(0, 20)});
    const bool same = rng.chance(50);
    milliseconds last{0};
    for (const int rank : barrier.world.ranks) {
      const auto when = barrier.world.random_time(seconds(3));
      last = std::max(last, when);
      barrier.attend_at(rank, when, same || rank > 0 ? "word" : "another");
    }
    barrier.world.simulation.run();
    for (const Result& result : barrier.results) {
      EXPECT_EQ(result.error, "");
      EXPECT_EQ(result.same, same || barrier.world.size() == 1);
      EXPECT_GE(result.when, last);
      EXPECT_LT(result.when, last + seconds(2));
    }
  });
}

/// Ranks that never come, or die between two requests.
TEST(StoreBarrier, AllThatLiveHaveOneOutcomeAndBlameNobodyWhoCame) {
  for_each_seed(300, [](Rng& rng) {
    Barrier barrier(rng, rng.int_between(2, 6), {.most_delay_ms = rng.int_between(0, 10)});
    auto& world = barrier.world;
    std::set<int> lost;
    for (const int rank : world.ranks) {
      if (rng.chance(20)) {
        lost.insert(rank);
        if (rng.chance(40)) continue;  // never starts
        world.stop_after(rank, rng.int_between(1, 8));
      }
      barrier.attend_at(rank, world.random_time(seconds(3)));
    }
    world.simulation.run();
    std::set<std::string> outcomes;
    for (const int rank : world.ranks) {
      const Result& result = barrier.of(rank);
      if (!result.ended) {
        EXPECT_TRUE(lost.contains(rank));
        continue;
      }
      EXPECT_LT(result.when, seconds(3) + kTimeout + seconds(1));
      outcomes.insert(result.error.substr(result.error.find(": ") + 1));
      if (result.error.empty()) continue;
      EXPECT_FALSE(named(result.error).empty()) << result.error;
      for (const int missing : named(result.error)) {
        EXPECT_TRUE(lost.contains(missing)) << result.error;
      }
    }
    EXPECT_LE(outcomes.size(), 1u);
    EXPECT_TRUE(!lost.empty() || outcomes == std::set<std::string>{""});
  });
}

/// One that comes at the very end of the others' patience either makes it for all, or for none.
TEST(StoreBarrier, ALateRankDividesNobody) {
  for_each_seed(300, [](Rng& rng) {
    Barrier barrier(rng, rng.int_between(2, 5), {.most_delay_ms = 5});
    for (const int rank : barrier.world.ranks) {
      const bool late = rank == barrier.world.size() - 1;
      barrier.attend_at(
          rank, late ? kTimeout - milliseconds(20) + barrier.world.random_time(milliseconds(60))
                     : milliseconds(0));
    }
    barrier.world.simulation.run();
    for (const Result& result : barrier.results) {
      EXPECT_EQ(result.error.empty(), barrier.of(0).error.empty()) << result.error;
      if (result.error.empty()) continue;
      EXPECT_EQ(named(result.error), std::set<int>{barrier.world.size() - 1}) << result.error;
    }
  });
}

TEST(StoreBarrier, AFailedRankIsNamedBeforeTheTimeout) {
  for_each_seed(50, [](Rng& rng) {
    Barrier barrier(rng, rng.int_between(2, 6), {.most_delay_ms = rng.int_between(0, 20)});
    auto& world = barrier.world;
    const int failed = rng.int_between(0, world.size() - 1);
    for (const int rank : world.ranks) {
      if (rank != failed) barrier.attend_at(rank, milliseconds(0));
    }
    world.simulation.spawn(failed, [&] {
      world.simulation.sleep_for(seconds(1));
      PeerDiagnostics(world.board(), failed).post_failure("the disk is full");
    });
    world.simulation.run();
    for (const int rank : world.ranks) {
      if (rank == failed) continue;
      EXPECT_NE(barrier.of(rank).error.find(
                    join_text("rank ", failed, " failed first: the disk is full")),
                std::string::npos)
          << barrier.of(rank).error;
      EXPECT_LT(barrier.of(rank).when, seconds(3));
    }
  });
}

TEST(StoreBarrier, ARankThatCallsOffEndsItForAll) {
  for_each_seed(50, [](Rng& rng) {
    Barrier barrier(rng, rng.int_between(2, 6), {.most_delay_ms = rng.int_between(0, 20)});
    auto& world = barrier.world;
    const int caller = rng.int_between(0, world.size() - 1);
    world.simulation.spawn(caller, [&] {
      const auto store = world.store();
      const auto board = world.board();
      barrier.meeting(caller, *store, *board).cancel();
    });
    for (const int rank : world.ranks) {
      if (rank != caller) barrier.attend_at(rank, world.random_time(seconds(1)));
    }
    world.simulation.run();
    for (const int rank : world.ranks) {
      if (rank == caller) continue;
      EXPECT_EQ(named(barrier.of(rank).error), std::set<int>{caller}) << barrier.of(rank).error;
      EXPECT_LT(barrier.of(rank).when, seconds(2));
    }
  });
}

/// Connections break with a request or with its reply.
TEST(StoreBarrier, ALostConnectionIsAPeerErrorInTime) {
  for_each_seed(300, [](Rng& rng) {
    Barrier barrier(rng, rng.int_between(2, 6), {.most_delay_ms = 5, .lost_per_mille = 20});
    for (const int rank : barrier.world.ranks) {
      barrier.attend_at(rank, barrier.world.random_time(seconds(1)));
    }
    barrier.world.simulation.run();  // throws for any other kind of exception
    for (const Result& result : barrier.results) {
      EXPECT_TRUE(result.ended);
      EXPECT_LT(result.when, seconds(1) + kTimeout + seconds(1));
    }
  });
}

}  // namespace store_barrier_test
}  // namespace tessera::comm
