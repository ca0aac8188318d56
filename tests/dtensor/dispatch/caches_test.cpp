#include "tessera/dtensor/dispatch/caches.h"

#include <ATen/Functions.h>
#include <gtest/gtest.h>

#include "tessera/comm/world.h"
#include "tessera/dtensor/dtensor.h"
#include "tests/support/ranks.h"
#include "tests/support/training.h"

namespace tessera {
namespace caches_test {

using comm::init_device_mesh;
using test::test_numbers;

TEST(CacheStats, CountWhatAnOpLooksUp) {
  test::run_ranks(1, [](int) {
    const DeviceMesh mesh = init_device_mesh("tp=1");
    const at::Tensor x = distribute_tensor(test_numbers({6, 4}, 1), mesh, {Shard(0)});
    const CacheStats cold = cache_stats();
    at::Tensor y = at::exp(x);
    const CacheStats first = cache_stats();
    EXPECT_EQ(first.decision_misses, cold.decision_misses + 1);
    EXPECT_EQ(first.decisions, cold.decisions + 1);
    EXPECT_GT(first.decision_bytes, cold.decision_bytes);
    y = at::exp(x);
    EXPECT_EQ(cache_stats().decision_misses, first.decision_misses);
    EXPECT_EQ(cache_stats().decision_hits, first.decision_hits + 1);
  });
}

TEST(CacheStats, OfARedistributionCountPlansAndPrograms) {
  test::run_ranks(2, [](int) {
    const DeviceMesh mesh = init_device_mesh("tp=2");
    const at::Tensor x = distribute_tensor(test_numbers({6, 5}, 1), mesh, {Shard(0)});
    const CacheStats cold = cache_stats();
    redistribute(x, mesh, {Shard(1)});
    const CacheStats warm = cache_stats();
    EXPECT_GT(warm.plan_misses, cold.plan_misses);
    EXPECT_GT(warm.plans, cold.plans);
    EXPECT_GT(warm.programs, cold.programs);
    EXPECT_GT(warm.shardings, cold.shardings);
  });
}

TEST(ClearCaches, OnOneRankAloneChangesNoResult) {
  test::run_ranks(2, [](int rank) {
    const DeviceMesh mesh = init_device_mesh("tp=2");
    const at::Tensor whole = test_numbers({6, 4}, 1);
    const at::Tensor x = distribute_tensor(whole, mesh, {Shard(0)});
    for (int i = 0; i < 6; ++i) {
      if (i % 2 == rank) {
        clear_caches();
        EXPECT_EQ(cache_stats().pooled_bytes, 0U);
      }
      const at::Tensor columns = redistribute(at::exp(x), mesh, {Shard(1)});
      EXPECT_TRUE(at::equal(full_tensor(columns), at::exp(whole)));
    }
  });
}

}  // namespace caches_test
}  // namespace tessera
