// Checked mode and calls with a limit, on simulated ranks.
#include <gtest/gtest.h>

#include <set>

#include "tessera/base/errors.h"
#include "tessera/liveness/call_with_timeout.h"
#include "tessera/observe/checked.h"
#include "tessera/observe/tap_context.h"
#include "tests/liveness/simulated_ranks.h"

namespace tessera::comm {
namespace checked_schedules_test {

using test::for_each_seed;
using test::Rng;

constexpr milliseconds kTimeout = seconds(5);
constexpr uint64_t kCalls = 5;

TappedCall barrier_call(uint64_t sequence) { return {CallInfo{}, sequence}; }

TappedCall all_reduce_call(uint64_t sequence) {
  TappedCall call = barrier_call(sequence);
  call.info.what = Collective::all_reduce;
  call.info.dtype = c10::ScalarType::Float;
  call.info.reduce = 0;
  call.info.in.add({4});
  return call;
}

struct Result {
  uint64_t passed = 0;  ///< calls
  std::string error;
  milliseconds when{0};
};

/// Rank `rank` checks kCalls calls. What it is about to do, by sequence; none: it stays away.
using CallOf = std::function<std::optional<TappedCall>(uint64_t sequence)>;
void check_calls(SimulatedRanks& world, int rank, const CallOf& call_of, Result& result) {
  CollectiveCheck check([&] { return world.store(); }, kTimeout);
  TapContext context;
  context.group = std::make_shared<const GroupInfo>(GroupInfo{world.ranks, rank, "g", "w"});
  context.channel = "g#0";
  context.state = std::make_shared<ObserverState>();
  try {
    for (uint64_t sequence = 1; sequence <= kCalls; ++sequence) {
      world.simulation.sleep_for(world.random_time(seconds(1)));
      const auto call = call_of(sequence);
      if (!call) break;
      check.before(context, *call, "");
      ++result.passed;
    }
  } catch (const PeerError& e) {
    result.error = e.what();
  }
  result.when = world.simulation.elapsed();
}

std::vector<Result> run_checks(SimulatedRanks& world,
                               const std::function<CallOf(int rank)>& calls_of) {
  std::vector<Result> results(world.ranks.size());
  for (const int rank : world.ranks) {
    world.simulation.spawn(rank, [&, rank] {
      Result result;
      check_calls(world, rank, calls_of(rank), result);
      if (!world.simulation.is_over()) results[static_cast<size_t>(rank)] = result;
    });
  }
  world.simulation.run();
  return results;
}

TEST(CheckedSchedules, EqualCallsPassAndLeaveFewKeys) {
  for_each_seed(50, [](Rng& rng) {
    SimulatedRanks world(rng, rng.int_between(2, 5), {.most_delay_ms = rng.int_between(0, 20)});
    const auto results = run_checks(
        world, [](int) { return [](uint64_t sequence) { return all_reduce_call(sequence); }; });
    for (const Result& result : results) {
      EXPECT_EQ(result.error, "");
      EXPECT_EQ(result.passed, kCalls);
    }
    EXPECT_LE(world.host->values.size(), 2 * world.ranks.size());
  });
}

TEST(CheckedSchedules, ADifferentCallIsAnErrorOfAllInTheSameCall) {
  for_each_seed(50, [](Rng& rng) {
    SimulatedRanks world(rng, rng.int_between(2, 5), {.most_delay_ms = rng.int_between(0, 20)});
    const int other = rng.int_between(0, world.size() - 1);
    const auto wrong = static_cast<uint64_t>(rng.int_between(1, kCalls));
    const auto results = run_checks(world, [&](int rank) {
      return [&, rank](uint64_t sequence) {
        return rank == other && sequence == wrong ? barrier_call(sequence)
                                                  : all_reduce_call(sequence);
      };
    });
    for (const Result& result : results) {
      EXPECT_EQ(result.passed, wrong - 1);
      EXPECT_NE(result.error.find(join_text("rank ", other, " calls barrier")), std::string::npos)
          << result.error;
    }
  });
}

/// A rank that stays away from a call, or dies at any request.
TEST(CheckedSchedules, AMissingRankIsNamed) {
  for_each_seed(100, [](Rng& rng) {
    SimulatedRanks world(rng, rng.int_between(2, 5), {.most_delay_ms = rng.int_between(0, 20)});
    const int lost = rng.int_between(0, world.size() - 1);
    const bool dies = rng.chance(50);
    const auto last = static_cast<uint64_t>(rng.int_between(0, kCalls - 1));
    if (dies) world.stop_after(lost, rng.int_between(1, 10));
    const auto results = run_checks(world, [&](int rank) -> CallOf {
      return [&, rank](uint64_t sequence) -> std::optional<TappedCall> {
        if (!dies && rank == lost && sequence > last) return std::nullopt;
        return all_reduce_call(sequence);
      };
    });
    std::set<uint64_t> passed;
    for (const int rank : world.ranks) {
      if (rank == lost) continue;
      const Result& result = results[static_cast<size_t>(rank)];
      passed.insert(result.passed);
      if (result.passed == kCalls) continue;
      EXPECT_NE(result.error.find(join_text("rank(s) ", lost, " did not arrive")),
                std::string::npos)
          << result.error;
      EXPECT_LT(result.when, seconds(20));
    }
    EXPECT_EQ(passed.size(), 1u);
  });
}

TEST(Within, GivesTheAnswerOrTheOtherwise) {
  for_each_seed(50, [](Rng& rng) {
    Simulation simulation(rng);
    const auto kept = std::make_shared<int>(0);
    simulation.spawn(0, [&] {
      EXPECT_EQ(call_with_timeout(seconds(1), 0, [] { return 7; }), 7);
      EXPECT_EQ(call_with_timeout(seconds(1), 5, []() -> int { throw std::runtime_error("gone"); }),
                5);
      const auto begin = simulation.elapsed();
      EXPECT_EQ(call_with_timeout(seconds(1), 5,
                                  [&simulation, kept] {
                                    simulation.sleep_for(seconds(100));
                                    return 7;
                                  }),
                5);
      EXPECT_LT(simulation.elapsed() - begin, seconds(2));
      EXPECT_GT(kept.use_count(), 1);  // the call goes on, with what it owns
    });
    simulation.run();
    EXPECT_EQ(kept.use_count(), 1);
  });
}

}  // namespace checked_schedules_test
}  // namespace tessera::comm
