#include <ATen/Context.h>
#include <ATen/TensorOperators.h>
#include <ATen/ops/_scaled_mm.h>
#include <ATen/ops/allclose.h>
#include <ATen/ops/avg_pool2d.h>
#include <ATen/ops/cumsum.h>
#include <ATen/ops/dropout.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/layer_norm.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/max_pool2d_with_indices.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/rand_like.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/scaled_dot_product_attention.h>
#include <ATen/ops/topk.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include "tessera/comm/rank_generator.h"
#include "tessera/comm/threads.h"
#include "tessera/comm/world.h"
#include "tessera/dtensor/dtensor.h"
#include "tessera/observe/expect.h"
#include "tessera/observe/recorder.h"

/// Sharded tensors on a GPU that thread ranks share.
namespace tessera {
namespace cuda_test {

class Cuda : public testing::Test {
 protected:
  void SetUp() override {
    if (!at::hasCUDA()) GTEST_SKIP() << "no GPU here";
  }
};

constexpr auto kGpu = c10::kCUDA;

TEST_F(Cuda, ALayerAndItsGradientMatchThePlainOnes) {
  const at::Tensor x = at::randn({8, 6, 16}, at::TensorOptions(kGpu).dtype(at::kDouble));
  const at::Tensor w = at::randn({32, 16}, x.options());
  at::Tensor plain_w = w.clone().set_requires_grad(true);
  const at::Tensor plain = at::layer_norm(at::linear(x, plain_w).relu(), {32});
  plain.pow(2).sum().backward();
  comm::run_ranks(4, [&](int) {
    const DeviceMesh mesh = comm::init_device_mesh("cuda:dp=2,tp=2");
    const at::Tensor sx = distribute_tensor(x, mesh, {Shard(0), Replicate()});
    at::Tensor sw = distribute_tensor(w, mesh, {Replicate(), Shard(0)}).set_requires_grad(true);
    const at::Tensor y = at::layer_norm(at::linear(sx, sw).relu(), {32});
    EXPECT_TRUE(at::allclose(full_tensor(y.detach()), plain.detach(), 1e-10, 1e-10));
    y.pow(2).sum().backward();
    EXPECT_TRUE(at::allclose(full_tensor(sw.grad()), plain_w.grad(), 1e-8, 1e-8));
  });
}

TEST_F(Cuda, AttentionOnShardedHeadsSendsNothing) {
  const auto half = at::TensorOptions(kGpu).dtype(at::kHalf);
  const at::Tensor q = at::randn({2, 4, 64, 32}, half);
  for (const bool causal : {false, true}) {
    at::Tensor alone = q.clone().set_requires_grad(true);
    const at::Tensor plain = at::scaled_dot_product_attention(alone, alone, alone, {}, 0.0, causal);
    plain.to(at::kFloat).pow(2).sum().backward();
    comm::run_ranks(4, [&](int) {
      const DeviceMesh mesh = comm::init_device_mesh("cuda:dp=2,tp=2");
      at::Tensor x = distribute_tensor(q, mesh, {Shard(0), Shard(1)}).set_requires_grad(true);
      comm::Recorder recorder(*comm::current_world());
      const at::Tensor y = at::scaled_dot_product_attention(x, x, x, {}, 0.0, causal);
      const at::Tensor loss = y.to(at::kFloat).pow(2);
      loss.sum().backward();
      EXPECT_EQ(comm::expect_comm(recorder, "nothing"), "");
      EXPECT_TRUE(at::allclose(full_tensor(y.detach()), plain.detach(), 1e-2, 1e-2));
      EXPECT_TRUE(at::allclose(full_tensor(x.grad()), alone.grad(), 3e-2, 3e-2));
    });
  }
}

/// Of 32-bit numbers the memory-efficient kernel does it.
TEST_F(Cuda, AttentionOverAShardedSequenceSendsNothing) {
  const at::Tensor q = at::randn({2, 2, 128, 32}, at::TensorOptions(kGpu));
  const at::Tensor kv = at::randn({2, 2, 40, 32}, q.options());
  const at::Tensor bias = at::randn({128, 40}, q.options());
  for (const bool biased : {false, true}) {
    const auto mask = [&](const at::Tensor& b) {
      return biased ? std::optional<at::Tensor>(b) : std::nullopt;
    };
    at::Tensor plain_q = q.clone().set_requires_grad(true);
    at::Tensor plain_kv = kv.clone().set_requires_grad(true);
    const at::Tensor plain =
        at::scaled_dot_product_attention(plain_q, plain_kv, plain_kv, mask(bias));
    plain.pow(2).sum().backward();
    comm::run_ranks(4, [&](int) {
      const DeviceMesh mesh = comm::init_device_mesh("cuda:cp=4");
      const at::Tensor sb = distribute_tensor(bias, mesh, {Shard(0)});
      at::Tensor sq = distribute_tensor(q, mesh, {Shard(2)}).set_requires_grad(true);
      at::Tensor skv = distribute_tensor(kv, mesh, {Replicate()}).set_requires_grad(true);
      comm::Recorder recorder(*comm::current_world());
      const at::Tensor y = at::scaled_dot_product_attention(sq, skv, skv, mask(sb));
      y.pow(2).sum().backward();
      EXPECT_EQ(comm::expect_comm(recorder, "nothing"), "");
      EXPECT_EQ(sharding(y).placements_text(), "S2");
      EXPECT_EQ(sharding(skv.grad()).placements_text(), "P(sum)");
      EXPECT_TRUE(at::allclose(full_tensor(y.detach()), plain.detach(), 1e-4, 1e-5));
      EXPECT_TRUE(at::allclose(full_tensor(sq.grad()), plain_q.grad(), 1e-4, 1e-4));
      EXPECT_TRUE(at::allclose(full_tensor(skv.grad()), plain_kv.grad(), 1e-4, 1e-4));
    });
  }
}

TEST_F(Cuda, ProductsOfEightBitFloatsKeepTheirColumns) {
  const auto half = at::TensorOptions(kGpu).dtype(at::kHalf);
  const at::Tensor a = at::randn({32, 64}, half).to(at::kFloat8_e4m3fn);
  const at::Tensor b = at::randn({32, 64}, half).to(at::kFloat8_e4m3fn).t();  // by columns
  const at::Tensor one = at::ones({}, at::TensorOptions(kGpu).dtype(at::kFloat));
  const at::Tensor plain =
      at::_scaled_mm(a, b, one, one, std::nullopt, std::nullopt, at::kBFloat16);
  comm::run_ranks(2, [&](int) {
    const DeviceMesh mesh = comm::init_device_mesh("cuda:tp=2");
    const at::Tensor scale = distribute_tensor(one, mesh, {Replicate()});
    for (const char* left : {"S0", "R", "S1"}) {
      for (const char* rows : {"S0", "R", "S1"}) {
        const at::Tensor x = distribute_tensor(a, mesh, parse_placements(left));
        const at::Tensor w = distribute_tensor(b.t(), mesh, parse_placements(rows)).t();
        const at::Tensor out =
            at::_scaled_mm(x, w, scale, scale, std::nullopt, std::nullopt, at::kBFloat16);
        EXPECT_TRUE(at::allclose(full_tensor(out), plain, 2e-2, 2e-1))
            << left << " by rows " << rows;
      }
    }
  });
}

TEST_F(Cuda, WhatIsShardedIsNotGatheredForTopKSumsAndPools) {
  const at::Tensor x = at::randn({2, 4, 64, 12}, at::TensorOptions(kGpu).dtype(at::kDouble));
  const auto run = [](at::Tensor t) {
    const at::Tensor first = std::get<0>(at::topk(t, 3, 2));
    const at::Tensor running = at::cumsum(t, 2);
    const at::Tensor most = std::get<0>(at::max_pool2d_with_indices(t, 3, 2, 1));
    const at::Tensor mean = at::avg_pool2d(t, 3, 1, 1);
    (first.sum() + running.pow(2).sum() + most.pow(2).sum() + mean.pow(2).sum()).backward();
    return std::vector<at::Tensor>{first.detach(), running.detach(), most.detach(), mean.detach(),
                                   t.grad()};
  };
  const auto want = run(x.clone().set_requires_grad(true));
  comm::run_ranks(4, [&](int) {
    const DeviceMesh mesh = comm::init_device_mesh("cuda:dp=2,sp=2");
    const auto got = run(distribute_tensor(x, mesh, {Shard(0), Shard(2)}).set_requires_grad(true));
    for (size_t i = 0; i < want.size(); ++i)
      EXPECT_TRUE(at::allclose(full_tensor(got[i]), want[i], 1e-10, 1e-10)) << "result " << i;
  });
}

TEST_F(Cuda, DrawsTheNumbersOfTheCpu) {
  comm::run_ranks(4, [&](int) {
    const DeviceMesh cpu = comm::init_device_mesh("dp=2,tp=2");
    const DeviceMesh gpu = comm::init_device_mesh("cuda:dp=2,tp=2");
    for (const auto dtype : {at::kFloat, at::kDouble}) {
      // The generator of a device says the key, so one of the CPU serves both.
      auto generator = comm::default_generator();
      const at::Tensor state = generator.get_state();
      const at::Tensor a =
          distribute_tensor(at::zeros({6, 5}, at::TensorOptions(dtype)), cpu, {Shard(0), Shard(1)});
      const at::Tensor b = distribute_tensor(
          at::zeros({6, 5}, at::TensorOptions(kGpu).dtype(dtype)), gpu, {Shard(1), Replicate()});
      a.uniform_(0, 1, generator);
      generator.set_state(state);
      b.uniform_(0, 1, generator);
      EXPECT_TRUE(at::equal(full_tensor(a), full_tensor(b).cpu()));
    }
  });
}

/// The default generators, one a device, are in step after a seed.
TEST_F(Cuda, ASeedGivesTheNumbersOfTheCpu) {
  const auto draw = [](const std::string& text, std::vector<Placement> placements) {
    const DeviceMesh mesh = comm::init_device_mesh(text);
    comm::manual_seed(11);
    const at::Tensor x = distribute_tensor(
        at::ones({6, 4}, at::TensorOptions(text.starts_with("cuda") ? kGpu : c10::kCPU)), mesh,
        std::move(placements));
    std::vector<at::Tensor> out;
    for (int i = 0; i < 3; ++i) out.push_back(full_tensor(at::dropout(x, 0.5, true)).cpu());
    return out;
  };
  std::vector<at::Tensor> host;
  comm::run_ranks(2, [&](int rank) {
    auto drawn = draw("dp=2", {Shard(0)});
    if (rank == 0) host = drawn;
  });
  EXPECT_FALSE(at::equal(host[0], host[1]));
  comm::run_ranks(2, [&](int) {
    const auto drawn = draw("cuda:dp=2", {Shard(1)});
    for (size_t i = 0; i < host.size(); ++i) EXPECT_TRUE(at::equal(drawn[i], host[i])) << i;
  });
}

TEST_F(Cuda, DropoutIsTheSameOnAnyMesh) {
  const at::Tensor x = at::randn({6, 8}, at::TensorOptions(kGpu));
  at::Tensor alone;
  const auto drop = [&](const DeviceMesh& mesh, std::vector<Placement> placements) {
    comm::manual_seed(3);
    return full_tensor(at::dropout(distribute_tensor(x, mesh, std::move(placements)), 0.5, true));
  };
  comm::run_ranks(1,
                  [&](int) { alone = drop(comm::init_device_mesh("cuda:all=1"), {Replicate()}); });
  comm::run_ranks(4, [&](int) {
    const DeviceMesh mesh = comm::init_device_mesh("cuda:dp=2,tp=2");
    EXPECT_TRUE(at::equal(drop(mesh, {Shard(0), Shard(1)}), alone));
    EXPECT_TRUE(at::equal(drop(mesh, {Shard(1), Replicate()}), alone));
  });
}

}  // namespace cuda_test
}  // namespace tessera
