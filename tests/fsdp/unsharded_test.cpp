#include "tessera/fsdp/unsharded.h"

#include <ATen/ops/allclose.h>
#include <ATen/ops/bmm.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/randn.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/nn/module.h>
#include <torch/types.h>

#include "tessera/base/errors.h"
#include "tessera/comm/threads.h"
#include "tessera/fsdp/compute_dtype.h"
#include "tessera/fsdp/fully_shard.h"
#include "tessera/module/distribute_module.h"

namespace tessera {
namespace unsharded_test {

using comm::init_device_mesh;
using comm::run_ranks;

struct Experts : torch::nn::Module {
  explicit Experts(const at::Tensor& value) { w = register_parameter("w", value.clone()); }
  at::Tensor w;
};

TEST(UnshardedParameter, IsThePartOverTheOtherAxesWithReducedGradients) {
  const at::Tensor value = at::randn({6, 5, 4}, at::kDouble);
  const at::Tensor batches = at::randn({2, 6, 3, 5}, at::kDouble);
  at::Tensor plain = value.clone().requires_grad_();
  for (int i = 0; i < 2; ++i) (at::bmm(batches[i], plain).square().sum() / 2).backward();
  run_ranks(4, [&](int) {
    const DeviceMesh mesh = init_device_mesh("dp=2,ep=2");
    Experts experts(value);
    distribute_(experts.w, mesh["ep"], {Shard(0)});
    fully_shard(experts, mesh["dp"]);
    for (int step = 0; step < 2; ++step) {
      const at::Tensor whole = unsharded_parameter(experts.w);
      EXPECT_EQ(device_mesh(whole), mesh["ep"]);
      const at::Tensor part = to_local(whole);
      EXPECT_EQ(part.sizes(), at::IntArrayRef({3, 5, 4}));
      const int dp = mesh.local_rank("dp"), ep = mesh.local_rank("ep");
      const at::Tensor mine = batches[dp].narrow(0, ep * 3, 3);
      at::bmm(mine, part).square().sum().backward();
      EXPECT_TRUE(at::allclose(full_tensor(experts.w.grad()), plain.grad()));
      experts.w.mutable_grad().reset();
    }
  });
}

TEST(UnshardedParameter, OfDataAxesAloneIsPlainAndViewsAreAccepted) {
  const at::Tensor value = at::randn({4, 3}, at::kDouble);
  run_ranks(2, [&](int) {
    Experts experts(value);
    fully_shard(experts, init_device_mesh("dp=2"));
    EXPECT_FALSE(is_dtensor(unsharded_parameter(experts.w)));
    EXPECT_TRUE(at::equal(unsharded_parameter(experts.w.t()), value.t()));
    const c10::AutoGradMode no_grad(false);
    EXPECT_TRUE(at::equal(unsharded_parameter(experts.w), value));
    EXPECT_THROW(unsharded_parameter(value), InvalidArgument);
  });
}

TEST(UnshardedParameter, OfALeafThatIsInNoGroupAccumulatesNoGradient) {
  const at::Tensor value = at::randn({4, 3}, at::kDouble);
  run_ranks(2, [&](int) {
    Experts experts(value);
    fully_shard(experts, init_device_mesh("dp=2"));
    for (const at::Tensor& made : {experts.w.detach().clone(), experts.w.detach()}) {
      const at::Tensor leaf = at::Tensor(made).requires_grad_();
      EXPECT_THROW(unsharded_parameter(leaf).sum().backward(), NotSupported);
      EXPECT_THROW(unsharded_parameter(leaf.t()).sum().backward(), NotSupported);
      EXPECT_FALSE(leaf.grad().defined());
      const auto gradients = torch::autograd::grad({unsharded_parameter(leaf).sum()}, {leaf});
      EXPECT_TRUE(at::equal(gradients[0], at::ones_like(value)));
      EXPECT_TRUE(at::equal(unsharded_parameter(leaf.detach()), value));
      const c10::AutoGradMode no_grad(false);
      EXPECT_TRUE(at::equal(unsharded_parameter(leaf), value));
    }
  });
}

TEST(UnshardedParameter, AParameterIsInComputeInsideAGuardOnly) {
  run_ranks(2, [&](int) {
    Experts experts(at::randn({4, 3}));
    fully_shard(experts, init_device_mesh("dp=2"));
    EXPECT_FALSE(fsdp::is_in_compute(experts.w));
    {
      const ComputeDtypeGuard guard(experts);
      EXPECT_TRUE(fsdp::is_in_compute(experts.w));
      EXPECT_TRUE(fsdp::is_in_compute(experts.w.t()));
    }
    EXPECT_FALSE(fsdp::is_in_compute(experts.w));
  });
}

}  // namespace unsharded_test
}  // namespace tessera
