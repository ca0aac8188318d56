// Parameters that travel and compute in bfloat16 and are updated in float32.
#include <gtest/gtest.h>
#include <torch/nn/modules/embedding.h>

#include "tessera/base/errors.h"
#include "tessera/comm/threads.h"
#include "tessera/fsdp/sharded_module.h"
#include "tessera/observe/recorder.h"
#include "tests/fsdp/training.h"

namespace tessera {
namespace mixed_precision_test {

using comm::CommOp;
using comm::init_device_mesh;
using comm::Recorder;
using comm::run_ranks;
using test::Batch;
using test::layers_of;
using test::make_batch;
using test::make_mlp;
using test::sgd;

const std::vector<int64_t> kWidths = {6, 10, 7, 3};

torch::nn::Sequential float32_mlp() {
  auto net = make_mlp(kWidths);
  net->to(at::kFloat);
  return net;
}

at::Tensor loss_of(torch::nn::Sequential& net, const Batch& batch) {
  const at::Tensor out = net->forward(batch.x.to(at::kBFloat16));
  return at::mse_loss(out.to(at::kFloat), batch.y.to(at::kFloat));
}

/// What a step does, written out: each part of the batch through a copy in bfloat16, the mean of
/// the gradients in float32.
void step_by_hand(torch::nn::Sequential& net, torch::optim::Optimizer& optimizer,
                  const Batch& batch, int ranks) {
  optimizer.zero_grad();
  for (int rank = 0; rank < ranks; ++rank) {
    auto copy = float32_mlp();
    const auto copies = copy->parameters();
    const auto parameters = net->parameters();
    {
      const torch::NoGradGuard no_grad;
      for (size_t i = 0; i < copies.size(); ++i) copies[i].copy_(parameters[i]);
    }
    copy->to(at::kBFloat16);
    loss_of(copy, batch.part(rank, ranks)).backward();
    for (size_t i = 0; i < copies.size(); ++i) {
      const at::Tensor grad = copies[i].grad().to(at::kFloat) / ranks;
      at::Tensor& sum = parameters[i].mutable_grad();
      sum = sum.defined() ? sum + grad : grad;
    }
  }
  optimizer.step();
}

TEST(FullyShardMixedPrecision, ComputesInOneTypeReducesAndKeepsInAnother) {
  for (const bool replicas : {false, true}) {
    run_ranks(3, [&](int rank) {
      const DeviceMesh mesh = init_device_mesh("dp=3");
      const Batch batch = make_batch(12, kWidths.front(), kWidths.back());
      auto want = float32_mlp();
      auto net = float32_mlp();
      const FullyShardOptions options = {
          .mp_policy = {.param_dtype = at::kBFloat16, .reduce_dtype = at::kFloat}};
      for (auto* layer : layers_of(net)) {
        replicas ? replicate(*layer, mesh, options) : fully_shard(*layer, mesh, options);
      }
      auto by_hand = sgd()(want->parameters());
      auto optimizer = sgd()(net->parameters());
      Recorder recorder(*comm::current_world());
      for (int step = 0; step < 5; ++step) {
        step_by_hand(want, *by_hand, batch, 3);
        recorder.clear();
        optimizer->zero_grad();
        loss_of(net, batch.part(rank, 3)).backward();
        optimizer->step();
        for (const auto& event : recorder.events()) {
          EXPECT_EQ(event.dtype, event.op == CommOp::all_gather ? at::kBFloat16 : at::kFloat);
        }
      }
      for (const auto& item : net->named_parameters()) {
        EXPECT_EQ(item.value().scalar_type(), at::kFloat);
        EXPECT_EQ(item.value().grad().scalar_type(), at::kFloat);
        EXPECT_TRUE(at::allclose(full_tensor(item.value().detach()),
                                 want->named_parameters()[item.key()].detach(), 1e-5, 1e-6))
            << item.key();
      }
    });
  }
}

TEST(FullyShardMixedPrecision, ReducesInTheTypeOfParametersUnlessToldOtherwise) {
  run_ranks(2, [](int rank) {
    const DeviceMesh mesh = init_device_mesh("dp=2");
    auto net = float32_mlp();
    fully_shard(*net, mesh, {.mp_policy = {.param_dtype = at::kBFloat16}});
    Recorder recorder(*comm::current_world());
    loss_of(net, make_batch(4, kWidths.front(), kWidths.back()).part(rank, 2)).backward();
    EXPECT_EQ(recorder.count(), 2);
    for (const auto& event : recorder.events()) EXPECT_EQ(event.dtype, at::kBFloat16);
    EXPECT_EQ(net->parameters()[0].grad().scalar_type(), at::kFloat);
    EXPECT_THROW(fully_shard(*float32_mlp(), mesh, {.mp_policy = {.param_dtype = at::kInt}}),
                 InvalidArgument);
  });
}

/// The holder's forward casts what floats, both ways; gradients of inputs keep the inputs' type.
TEST(FullyShardMixedPrecision, CastsInputsAndOutputsWhereItIsCalledInTheModulesPlace) {
  run_ranks(2, [](int rank) {
    const DeviceMesh mesh = init_device_mesh("dp=2");
    const Batch mine = make_batch(4, kWidths.front(), kWidths.back()).part(rank, 2);
    auto by_hand = float32_mlp();
    fully_shard(*by_hand, mesh, {.mp_policy = {.param_dtype = at::kBFloat16}});
    auto net =
        fully_shard(float32_mlp(), mesh,
                    {.mp_policy = {.param_dtype = at::kBFloat16, .output_dtype = at::kDouble}});
    const at::Tensor x = mine.x.to(at::kFloat).requires_grad_();
    const at::Tensor out = net(x);
    EXPECT_EQ(out.scalar_type(), at::kDouble);
    constexpr double kRounding = 1e-2;  // a bit of bfloat16
    const at::Tensor want = by_hand->forward(mine.x.to(at::kBFloat16));
    EXPECT_TRUE(at::allclose(out, want.to(at::kDouble), kRounding, kRounding));
    out.sum().backward();
    want.sum().backward();
    EXPECT_EQ(x.grad().scalar_type(), at::kFloat);
    const auto expected = by_hand->parameters();
    for (size_t i = 0; i < expected.size(); ++i) {
      EXPECT_TRUE(at::allclose(full_tensor(net->parameters()[i].grad()),
                               full_tensor(expected[i].grad()), kRounding, kRounding));
    }
  });
}

TEST(FullyShardMixedPrecision, LeavesInputsAloneIfToldToAndTokensAlways) {
  run_ranks(2, [](int) {
    const DeviceMesh mesh = init_device_mesh("dp=2");
    const MixedPrecisionPolicy types = {.param_dtype = at::kBFloat16, .cast_forward_inputs = false};
    auto net = fully_shard(float32_mlp(), mesh, {.mp_policy = types});
    EXPECT_ANY_THROW(net(at::ones({1, 6}, at::kFloat)));
    EXPECT_EQ(net(at::ones({1, 6}, at::kBFloat16)).scalar_type(), at::kBFloat16);
    auto table = fully_shard(torch::nn::Embedding(5, 3), mesh,
                             {.mp_policy = {.param_dtype = at::kBFloat16}});
    EXPECT_EQ(table(at::ones({2}, at::kLong)).scalar_type(), at::kBFloat16);
  });
}

}  // namespace mixed_precision_test
}  // namespace tessera
