// Casts of parameters stay sharded, by hand or by autocast.
#include <ATen/autocast_mode.h>
#include <gtest/gtest.h>

#include "tests/fsdp/training.h"

namespace tessera::test {
namespace autocast_test {

/// Ops of the calling thread compute in bfloat16.
class Autocast {
 public:
  Autocast() {
    at::autocast::set_autocast_dtype(at::kCPU, at::kBFloat16);
    at::autocast::set_autocast_enabled(at::kCPU, true);
    at::autocast::set_autocast_cache_enabled(true);
  }
  ~Autocast() {
    at::autocast::set_autocast_enabled(at::kCPU, false);
    at::autocast::clear_cache();
  }
};

at::Tensor loss_of(torch::nn::Sequential& net, const Batch& batch) {
  const Autocast in_bfloat16;
  return at::mse_loss(net->forward(batch.x).to(at::kFloat), batch.y);
}

/// The same losses and gradients as without sharding; backward gathers again what forward
/// resharded, so neither autocast nor autograd kept it whole.
TEST(FullyShardAutocast, KeepsShardsOnly) {
  run_ranks(2, [](int) {
    const DeviceMesh mesh = init_device_mesh("dp=2");
    const Batch both = make_batch(4, 6, 3);
    const Batch batch = {both.x.to(at::kFloat), both.y.to(at::kFloat)};
    auto plain = make_mlp(kWidths);
    auto net = make_mlp(kWidths);
    plain->to(at::kFloat);
    net->to(at::kFloat);
    shard_layers(net, mesh, kUnmerged);
    Recorder recorder(*comm::current_world());
    for (int step = 0; step < 3; ++step) {
      recorder.clear();
      plain->zero_grad();
      net->zero_grad();
      const at::Tensor want = loss_of(plain, batch);
      const at::Tensor got = loss_of(net, batch);  // all ranks the same batch
      EXPECT_TRUE(at::allclose(got.detach(), want.detach(), 1e-2)) << got << want;
      want.backward();
      got.backward();
      EXPECT_EQ(recorder.count(CommOp::all_gather), 4) << recorder.to_text();
      for (const auto& item : net->named_parameters()) {
        EXPECT_TRUE(at::allclose(full_tensor(item.value().grad()),
                                 plain->named_parameters()[item.key()].grad(), 1e-5, 1e-6))
            << item.key();
      }
      EXPECT_EQ(gathered_memory(mesh).bytes, 0);
    }
  });
}

/// A cast is a copy: what is written to the parameter later does not change it, and the other way.
TEST(FullyShardAutocast, CastsAreCopies) {
  run_ranks(2, [](int) {
    const DeviceMesh mesh = init_device_mesh("dp=2");
    auto net = make_mlp({4, 3});
    fully_shard(*net, mesh);
    const at::Tensor weight = layers_of(net)[0]->weight;
    const at::Tensor before = full_tensor(weight.detach()).to(at::kFloat);
    const at::Tensor cast = weight.to(at::kFloat);
    EXPECT_TRUE(is_dtensor(cast));
    const at::Tensor x = at::ones({2, 4});
    EXPECT_TRUE(at::allclose(at::linear(x, cast).detach(), at::linear(x, before), 1e-6));
    {
      const torch::NoGradGuard no_grad;
      weight.fill_(7);
    }
    EXPECT_TRUE(at::allclose(at::linear(x, cast).detach(), at::linear(x, before), 1e-6));
    EXPECT_TRUE(at::equal(at::linear(x, weight.to(at::kFloat)).detach(), at::full({2, 3}, 28.0F)));
    const at::Tensor other = weight.detach().to(at::kFloat);
    other.fill_(1);
    EXPECT_TRUE(at::equal(at::linear(x, other), at::full({2, 3}, 4.0F)));
    EXPECT_TRUE(at::equal(full_tensor(weight.detach()), at::full({3, 4}, 7.0, at::kDouble)));
  });
}

/// Without gradients too a group is gathered once, not each of its parameters.
TEST(FullyShardAutocast, EvaluationGathersGroups) {
  run_ranks(2, [](int) {
    const DeviceMesh mesh = init_device_mesh("dp=2");
    auto net = make_mlp({6, 80, 70, 3});
    net->to(at::kFloat);
    shard_layers(net, mesh, kUnmerged);
    const torch::NoGradGuard no_grad;
    const Autocast in_bfloat16;
    Recorder recorder(*comm::current_world());
    net->forward(at::ones({4, 6}));
    EXPECT_EQ(recorder.count(CommOp::all_gather), 3) << recorder.to_text();
    EXPECT_EQ(recorder.count(), 3);
  });
}

}  // namespace autocast_test
}  // namespace tessera::test
