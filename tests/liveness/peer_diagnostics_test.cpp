// What ranks say of failures over the store, on simulated ranks: best effort, but never late.
#include "tessera/liveness/peer_diagnostics.h"

#include <gtest/gtest.h>

#include <set>

#include "tests/liveness/simulated_ranks.h"

namespace tessera::comm {
namespace peer_diagnostics_test {

using test::for_each_seed;
using test::Rng;

/// What "nothing takes longer than a few seconds" is held to; a probe may take a dozen.
constexpr milliseconds kAFew = seconds(4);
constexpr milliseconds kADozen = seconds(15);

TEST(PeerDiagnostics, AllReadTheFailureThatWasFirst) {
  for_each_seed(100, [](Rng& rng) {
    SimulatedRanks world(rng, rng.int_between(2, 6), {.most_delay_ms = rng.int_between(0, 100)});
    std::set<std::string> read;
    for (const int rank : world.ranks) {
      world.simulation.spawn(rank, [&, rank] {
        PeerDiagnostics board(world.board(), rank);
        EXPECT_FALSE(board.first_failure().has_value());
        world.simulation.sleep_for(seconds(2));
        board.post_failure("disk " + std::to_string(rank));
        const auto first = board.first_failure();
        ASSERT_TRUE(first.has_value());
        EXPECT_EQ(first->text, "disk " + std::to_string(first->rank));
        read.insert(first->text);
      });
    }
    world.simulation.run();
    EXPECT_EQ(read.size(), 1u);
  });
}

TEST(PeerDiagnostics, WhoGaveUpIsKnownByCall) {
  for_each_seed(50, [](Rng& rng) {
    SimulatedRanks world(rng, 2, {.most_delay_ms = rng.int_between(0, 100)});
    world.simulation.spawn(
        0, [&] { PeerDiagnostics(world.board(), 0).give_up("g#0", 7, "no answer"); });
    world.simulation.spawn(1, [&] {
      PeerDiagnostics board(world.board(), 1);
      world.simulation.sleep_for(seconds(1));
      EXPECT_FALSE(board.abandoned_by("g#0", 6).has_value());
      EXPECT_FALSE(board.abandoned_by("g#1", 7).has_value());
      const auto who = board.abandoned_by("g#0", 7);
      ASSERT_TRUE(who.has_value());
      EXPECT_EQ(who->rank, 0);
      EXPECT_EQ(who->text, "no answer");
    });
    world.simulation.run();
  });
}

/// Every question, in an order that the dice choose.
void ask_something(PeerDiagnostics& board, SimulatedRanks& world, Rng& rng) {
  const auto begin = world.simulation.elapsed();
  const int what = rng.int_between(0, 4);
  if (what == 0) board.post_failure("the disk is full");
  if (what == 1) board.first_failure();
  if (what == 2) board.give_up("g#0", 1, "why");
  if (what == 3) board.abandoned_by("g#0", 1);
  if (what == 4) board.probe(world.ranks);
  EXPECT_LT(world.simulation.elapsed() - begin, what == 4 ? kADozen : kAFew) << "question " << what;
}

/// Delays, broken connections, a host that is stopped for a while or goes, in any order.
TEST(PeerDiagnostics, NothingThrowsOrTakesLongWhateverTheStoreDoes) {
  for_each_seed(200, [](Rng& rng) {
    SimulatedRanks world(rng, 3,
                         {.most_delay_ms = rng.one_of<int>({0, 20, 800, 5000}),
                          .lost_per_mille = rng.one_of<int>({0, 0, 20})});
    for (const int rank : world.ranks) {
      world.simulation.spawn(rank, [&, rank] {
        PeerDiagnostics board(world.board(), rank);
        for (int i = 0; i < 6; ++i) {
          world.simulation.sleep_for(world.random_time(seconds(5)));
          ask_something(board, world, rng);
        }
      });
    }
    world.simulation.spawn(100, [&] {
      world.simulation.sleep_for(world.random_time(seconds(20)));
      world.host->state = rng.one_of<StoreHost::State>(
          {StoreHost::State::up, StoreHost::State::silent, StoreHost::State::gone});
      world.simulation.sleep_for(world.random_time(seconds(20)));
      if (rng.chance(50)) world.host->state = StoreHost::State::up;
    });
    world.simulation.run();
  });
}

/// While a question is unanswered none is added to it; once the host goes on, questions are
/// answered again.
TEST(PeerDiagnostics, AStoreThatGoesOnIsAskedAgain) {
  for_each_seed(50, [](Rng& rng) {
    SimulatedRanks world(rng, 1, {.most_delay_ms = rng.int_between(0, 50)});
    world.simulation.spawn(0, [&] {
      PeerDiagnostics board(world.board(), 0);
      board.post_failure("the disk is full");
      world.host->state = StoreHost::State::silent;
      EXPECT_FALSE(board.first_failure().has_value());
      const auto begin = world.simulation.elapsed();
      for (int i = 0; i < 100; ++i) EXPECT_FALSE(board.first_failure().has_value());
      EXPECT_LT(world.simulation.elapsed() - begin, seconds(1));
      world.host->state = StoreHost::State::up;
      world.simulation.sleep_for(std::chrono::minutes(2));
      EXPECT_TRUE(board.first_failure().has_value());
    });
    world.simulation.run();
  });
}

TEST(PeerDiagnostics, NamesHostsWhereTheyWerePosted) {
  Rng rng(1);
  SimulatedRanks world(rng, 4);
  world.simulation.spawn(0, [&] {
    PeerDiagnostics board(world.board(), 0);
    EXPECT_EQ(board.ranks_with_hosts(std::vector<int>{2}), "rank 2");
    EXPECT_EQ(board.ranks_with_hosts(std::vector<int>{2, 3}), "ranks 2,3");
    PeerDiagnostics(world.board(), 2).post_host("node7");
    EXPECT_EQ(board.ranks_with_hosts(std::vector<int>{2}), "rank 2 (node7)");
    EXPECT_EQ(board.ranks_with_hosts(std::vector<int>{1, 2, 3}), "ranks 1,2 (node7), 3");
    world.host->state = StoreHost::State::gone;
    EXPECT_EQ(board.ranks_with_hosts(std::vector<int>{2, 3}), "ranks 2,3");
  });
  world.simulation.run();
}

}  // namespace peer_diagnostics_test
}  // namespace tessera::comm
