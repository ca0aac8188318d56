// Gradient scaling over shards.
#include <gtest/gtest.h>

#include <limits>

#include "tessera/base/errors.h"
#include "tessera/comm/threads.h"
#include "tessera/dtensor/dtensor.h"
#include "tests/support/ranks.h"

namespace tessera {
namespace amp_test {

using comm::init_device_mesh;
using test::run_ranks;

constexpr float kInf = std::numeric_limits<float>::infinity();

/// Unscales by 1/4; found_inf afterwards.
float unscale(std::vector<at::Tensor> grads) {
  at::Tensor found = at::zeros({1});
  at::_amp_foreach_non_finite_check_and_unscale_(grads, found, at::full({1}, 0.25));
  return found.item<float>();
}

TEST(Amp, UnscalesEveryPart) {
  run_ranks(2, [](int) {
    const DeviceMesh mesh = init_device_mesh("tp=2");
    const at::Tensor full = at::arange(1, 16, at::kFloat).reshape({5, 3});
    const at::Tensor x = distribute_tensor(full, mesh, {Shard(0)});
    const at::Tensor y = distribute_tensor(full, mesh, {Replicate()});
    const at::Tensor plain = full.clone();
    EXPECT_EQ(unscale({x, y, plain}), 0);
    for (const at::Tensor& grad : {full_tensor(x), full_tensor(y), plain}) {
      EXPECT_TRUE(at::equal(grad, full / 4));
    }
  });
}

TEST(Amp, AnOverflowOnOneRankIsFoundOnAll) {
  run_ranks(4, [](int) {
    const DeviceMesh mesh = init_device_mesh("dp=2,tp=2");
    for (const int64_t row : {0, 3, 7}) {
      for (const float bad : {kInf, -kInf, std::nanf("")}) {
        at::Tensor full = at::ones({8, 2});
        full[row][1] = bad;
        EXPECT_EQ(unscale({distribute_tensor(full, mesh, {Shard(0), Shard(0)})}), 1);
      }
    }
    // Three rows over four ranks: one has nothing to look at.
    EXPECT_EQ(unscale({distribute_tensor(at::ones({3, 2}), mesh, {Shard(0), Shard(0)})}), 0);
  });
}

TEST(Amp, GradientsOnSeveralMeshesCountTogether) {
  run_ranks(3, [](int) {
    const DeviceMesh left = init_device_mesh("a=2@0,1");
    const DeviceMesh right = init_device_mesh("b=2@1,2");
    const at::Tensor good = distribute_tensor(at::ones({4}), right, {Shard(0)});
    const at::Tensor bad = distribute_tensor(at::full({4}, kInf), left, {Shard(0)});
    EXPECT_EQ(unscale({bad, good}), 1);
    EXPECT_EQ(unscale({good, bad}), 1);
  });
}

TEST(Amp, PartialGradientsAreReducedFirst) {
  run_ranks(2, [](int rank) {
    const DeviceMesh mesh = init_device_mesh("tp=2");
    const auto partial = [&](float mine) {
      return from_local(at::full({4}, mine), mesh, {Partial()});
    };
    const at::Tensor sharded = distribute_tensor(at::ones({4}), mesh, {Shard(0)});
    const at::Tensor grad = partial(rank == 0 ? 3 : 5);
    EXPECT_EQ(unscale({sharded, grad}), 0);
    EXPECT_TRUE(at::equal(full_tensor(grad), at::full({4}, 2)));
    EXPECT_TRUE(at::equal(full_tensor(sharded), at::full({4}, 0.25)));
    EXPECT_TRUE(sharding(grad).has_partial());
    // Each addend is finite.
    EXPECT_EQ(unscale({partial(3e38F)}), 1);
    EXPECT_EQ(unscale({partial(rank == 0 ? kInf : 1)}), 1);
    EXPECT_EQ(unscale({partial(1), at::ones({2})}), 0);
  });
}

TEST(Amp, TheScaleIsUpdatedAsOnOneRank) {
  run_ranks(2, [](int) {
    const DeviceMesh mesh = init_device_mesh("tp=2");
    for (const float found : {0.0F, 1.0F}) {
      at::Tensor want = at::full({1}, 8.0);
      at::Tensor tracker = at::zeros({1}, at::kInt);
      at::_amp_update_scale_(want, tracker, at::full({1}, found), 2.0, 0.5, 1);
      const auto replicated = [&](const at::Tensor& t) {
        return distribute_tensor(t, mesh, {Replicate()});
      };
      at::Tensor scale = replicated(at::full({1}, 8.0));
      at::Tensor growth = replicated(at::zeros({1}, at::kInt));
      const at::Tensor result =
          at::_amp_update_scale_(scale, growth, replicated(at::full({1}, found)), 2.0, 0.5, 1);
      EXPECT_TRUE(result.is_same(scale));
      EXPECT_TRUE(at::equal(full_tensor(scale), want));
      EXPECT_TRUE(at::equal(full_tensor(growth), tracker));
    }
  });
}

}  // namespace amp_test
}  // namespace tessera
