#include <gtest/gtest.h>

#include <thread>
#include <vector>

#include "tessera/plan/plan.h"

namespace tessera::plan {
namespace cache_test {

const Sharding kFrom = Sharding::parse("dp=2,tp=4 : S0,S1 : 64x32");
const Sharding kTo = Sharding::parse("dp=2,tp=4 : R,S0 : 64x32");

TEST(PlanCache, GivesTheSamePlanAgain) {
  clear_cache();
  const auto before = cache_stats();
  EXPECT_EQ(before.entries, 0U);
  const auto plan = cached_plan(kFrom, kTo);
  EXPECT_EQ(cached_plan(kFrom, kTo), plan);
  EXPECT_NE(cached_plan(kTo, kFrom), plan);
  EXPECT_EQ(plan->to_text(), make_plan(kFrom, kTo, cost::default_machine("cpu")).to_text());
  EXPECT_EQ(cache_stats().entries, 2U);
  EXPECT_EQ(cache_stats().misses, before.misses + 2);
  EXPECT_EQ(cache_stats().hits, before.hits + 1);
}

TEST(PlanCache, PlansAnewForAnotherMachine) {
  const auto from = Sharding::parse("a_device:dp=2,tp=2 : S0,S0 : 512x512");
  const auto to = Sharding::parse("a_device:dp=2,tp=2 : R,R : 512x512");
  cost::Machine slow_calls;
  slow_calls.within_host = {1, 1e-9, 1e9};
  cost::set_default_machine("a_device", slow_calls);
  EXPECT_EQ(cached_plan(from, to)->steps.size(), 1U);  // one call is all
  cost::Machine free_calls;
  free_calls.ranks_per_host = 2;
  free_calls.within_host = {0, 0, 1e9};
  free_calls.across_hosts = {0, 0, 1e3};
  cost::set_default_machine("a_device", free_calls);
  EXPECT_GT(cached_plan(from, to)->steps.size(), 1U);
}

TEST(PlanCache, KeepsItsShardingsAlive) {
  clear_cache();
  const Sharding::Node* id = nullptr;
  {
    const auto from = Sharding::parse("dp=2 : S0 : 12x34");
    id = from.id();
    cached_plan(from, from.replicated());
  }
  // The key's pointer must not come to mean another sharding.
  EXPECT_EQ(Sharding::parse("dp=2 : S0 : 12x34").id(), id);
  clear_cache();
  EXPECT_EQ(cache_stats().entries, 0U);
}

TEST(PlanCache, IsSharedByThreads) {
  clear_cache();
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([t] {
      for (int64_t i = 1; i <= 200; ++i) {
        const auto from = Sharding(kFrom.mesh(), {Shard(0), Replicate()}, {i, 4});
        EXPECT_EQ(cached_plan(from, from.replicated())->steps.size(), 1U);
        if (t == 0 && i % 50 == 0) clear_cache();
      }
    });
  }
  for (auto& thread : threads) thread.join();
  EXPECT_LE(cache_stats().entries, 200U);
}

}  // namespace cache_test
}  // namespace tessera::plan
