#include <ATen/TensorOperators.h>
#include <ATen/ops/allclose.h>
#include <ATen/ops/cumsum.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/randn.h>
#include <gtest/gtest.h>

#include "tessera/base/errors.h"
#include "tessera/comm/threads.h"
#include "tessera/comm/world.h"
#include "tessera/dtensor/dtensor.h"
#include "tessera/dtensor/policy.h"
#include "tessera/observe/expect.h"
#include "tessera/observe/recorder.h"
#include "tests/support/ranks.h"
#include "tests/support/spread.h"

/// cumsum along a dim that is sharded.
namespace tessera {
namespace cumsum_test {

using comm::init_device_mesh;
using test::run_ranks;
using test::spread;

TEST(CumSum, AlongAShardedDimIsThePlainOne) {
  const at::Tensor full = at::randint(-9, 10, {5, 11, 3}, at::kLong);
  run_ranks(4, [&](int) {
    const DeviceMesh mesh = init_device_mesh("dp=2,tp=2");
    for (const char* placements :
         {"S1,R", "R,S1", "S1,S1", "S0,S1", "S1,S2", "SS1(2),R", "S0,S0", "S2,S2"}) {
      for (const auto type : {at::kLong, at::kInt, at::kDouble}) {
        at::Tensor x = spread(full.to(type), mesh, placements);
        for (int64_t dim = -3; dim < 3; ++dim) {
          const at::Tensor y = at::cumsum(x, dim);
          const at::Tensor want = at::cumsum(full.to(type), dim);
          EXPECT_EQ(y.scalar_type(), want.scalar_type());
          EXPECT_TRUE(at::equal(full_tensor(y), want)) << placements << " dim " << dim;
        }
      }
      const at::Tensor as = at::cumsum(spread(full, mesh, placements), 1, at::kFloat);
      EXPECT_TRUE(at::equal(full_tensor(as), at::cumsum(full, 1, at::kFloat))) << placements;
    }
    // tp shards first.
    const at::Tensor x = spread(full, mesh, "S1,S1");
    const at::Tensor turned =
        redistribute(x, sharding(x).with_placements({Shard(1), Shard(1)}, {1, 0}));
    EXPECT_TRUE(at::equal(full_tensor(at::cumsum(turned, 1)), at::cumsum(full, 1)));
  });
}

TEST(CumSum, OfRaggedAndEmptyParts) {
  const at::Tensor full = at::randint(-9, 10, {9, 2}, at::kDouble);
  run_ranks(4, [&](int rank) {
    const DeviceMesh mesh = init_device_mesh("dp=4");
    const std::vector<int64_t> begin = {0, 0, 1, 7, 9};
    const auto r = static_cast<size_t>(rank);
    const at::Tensor x = from_local(full.slice(0, begin[r], begin[r + 1]), mesh, {Shard(0)});
    EXPECT_TRUE(at::equal(full_tensor(at::cumsum(x, 0)), at::cumsum(full, 0)));
  });
}

TEST(CumSum, SendsOneNumberARankAndRow) {
  run_ranks(4, [&](int) {
    const DeviceMesh mesh = init_device_mesh("tp=4");
    const at::Tensor x = spread(at::randn({8, 4096}, at::kDouble), mesh, "S1");
    comm::Recorder recorder(*comm::current_world());
    const at::Tensor y = at::cumsum(x, 1);
    EXPECT_EQ(comm::expect_comm(recorder, "1 all_gather on tp, 1 implicit"), "");
    EXPECT_EQ(recorder.bytes(), 4 * 8 * 8);
    EXPECT_EQ(sharding(y).placements_text(), "S1");
    const CommPolicy explicit_only(ImplicitComm::forbid);
    EXPECT_THROW(at::cumsum(x, 1), NotSupported);
  });
}

TEST(CumSum, GradientsAndSmallTypes) {
  const at::Tensor full = at::randint(-9, 10, {4, 40}, at::kDouble);
  at::Tensor alone = full.clone().set_requires_grad(true);
  at::cumsum(alone, 1).pow(2).sum().backward();
  run_ranks(4, [&](int) {
    const DeviceMesh mesh = init_device_mesh("dp=2,tp=2");
    at::Tensor x = spread(full, mesh, "S0,S1");
    x.set_requires_grad(true);
    at::cumsum(x, 1).pow(2).sum().backward();
    EXPECT_TRUE(at::equal(full_tensor(x.grad()), alone.grad()));
    const at::Tensor small = at::cumsum(spread(full.to(at::kBFloat16), mesh, "R,S1"), 1);
    EXPECT_EQ(small.scalar_type(), at::kBFloat16);
    EXPECT_TRUE(
        at::allclose(full_tensor(small), at::cumsum(full.to(at::kBFloat16), 1), 1e-2, 1e-2));
  });
}

}  // namespace cumsum_test
}  // namespace tessera
