#include "tessera/fsdp/fully_shard.h"

#include <gtest/gtest.h>
#include <torch/nn/utils/clip_grad.h>

#include "tessera/base/errors.h"
#include "tests/fsdp/training.h"

namespace tessera::test {
namespace fully_shard_test {

TEST(FullyShard, ParametersAreShardedInPlace) {
  run_ranks(2, [](int rank) {
    const DeviceMesh mesh = init_device_mesh("dp=2");
    auto net = make_mlp({4, 5, 2});
    const at::Tensor weight = layers_of(net)[0]->weight;  // another handle
    const at::Tensor before = weight.detach().clone();
    fully_shard(*net, mesh);
    EXPECT_EQ(sharding(weight).to_text(), "dp=2 : S0 : 5x4 f64");
    EXPECT_TRUE(weight.is_leaf() && weight.requires_grad());
    EXPECT_TRUE(
        at::equal(to_local(weight.detach()), before.narrow(0, rank * 3, rank == 0 ? 3 : 2)));
    EXPECT_TRUE(at::equal(full_tensor(weight.detach()), before));
  });
}

TEST(FullyShard, OutputsAreThePlainOnesAndGradientsAreSharded) {
  run_ranks(2, [](int rank) {
    const DeviceMesh mesh = init_device_mesh("dp=2");
    const Batch batch = make_batch(4, 4, 2);
    auto plain = make_mlp({4, 5, 2});
    auto net = make_mlp({4, 5, 2});
    shard_layers(net, mesh);
    const at::Tensor out = net->forward(batch.x);
    EXPECT_FALSE(is_dtensor(out));
    EXPECT_TRUE(at::allclose(out.detach(), plain->forward(batch.x).detach(), 1e-12, 1e-12));
    at::mse_loss(plain->forward(batch.x), batch.y).backward();
    const Batch mine = batch.part(rank, 2);
    at::mse_loss(net->forward(mine.x), mine.y).backward();
    for (const auto& item : net->named_parameters()) {
      const at::Tensor grad = item.value().grad();
      EXPECT_EQ(sharding(grad), sharding(item.value())) << item.key();
      EXPECT_TRUE(at::allclose(full_tensor(grad), plain->named_parameters()[item.key()].grad(),
                               1e-12, 1e-12))
          << item.key();
    }
  });
}

TEST(FullyShard, ClipsGradientsByTheirGlobalNorm) {
  run_ranks(3, [](int rank) {
    const DeviceMesh mesh = init_device_mesh("dp=3");
    const Batch batch = make_batch(6, 6, 4);
    auto plain = make_mlp({6, 8, 4});
    at::mse_loss(plain->forward(batch.x), batch.y).backward();
    const double want = torch::nn::utils::clip_grad_norm_(plain->parameters(), 0.05);
    auto net = make_mlp({6, 8, 4});
    shard_layers(net, mesh);
    const Batch mine = batch.part(rank, 3);
    at::mse_loss(net->forward(mine.x), mine.y).backward();
    EXPECT_NEAR(torch::nn::utils::clip_grad_norm_(net->parameters(), 0.05), want, 1e-12);
    for (const auto& item : net->named_parameters()) {
      EXPECT_TRUE(at::allclose(full_tensor(item.value().grad()),
                               plain->named_parameters()[item.key()].grad(), 1e-10, 1e-12));
    }
  });
}

/// Without gradients too, and the values are those after the optimizer's step.
TEST(FullyShard, EvaluatesWithoutGradientsBetweenSteps) {
  run_ranks(2, [](int rank) {
    const DeviceMesh mesh = init_device_mesh("dp=2");
    const Batch batch = make_batch(4, 6, 4);
    auto plain = make_mlp({6, 8, 4});
    auto net = make_mlp({6, 8, 4});
    shard_layers(net, mesh);
    auto alone = sgd()(plain->parameters());
    auto optimizer = sgd()(net->parameters());
    for (int step = 0; step < 3; ++step) {
      train(forward_of(plain), *alone, batch, 1);
      train(forward_of(net), *optimizer, batch.part(rank, 2), 1);
      const torch::NoGradGuard no_grad;
      for (int pass = 0; pass < 2; ++pass) {
        EXPECT_TRUE(at::allclose(net->forward(batch.x), plain->forward(batch.x), 1e-10, 1e-10));
      }
    }
  });
}

TEST(FullyShard, RefusesWhatItCannotHold) {
  run_ranks(2, [](int) {
    const DeviceMesh mesh = init_device_mesh("dp=2");
    auto net = make_mlp({4, 5, 2});
    fully_shard(*net, mesh);
    EXPECT_THROW(fully_shard(*net, mesh), InvalidArgument);

    auto transposed = torch::nn::Linear(3, 4);
    transposed->weight.set_data(at::ones({3, 4}).t());
    EXPECT_THROW(fully_shard(*transposed, mesh), NotSupported);
    EXPECT_FALSE(is_dtensor(transposed->bias));

    auto with_gradient = make_mlp({4, 2});
    with_gradient->forward(at::ones({1, 4}, at::kDouble)).sum().backward();
    EXPECT_THROW(fully_shard(*with_gradient, mesh), InvalidArgument);
    EXPECT_THROW(fully_shard(*make_mlp({4, 2}), DeviceMesh::parse("dp=2")), InvalidArgument);
  });
}

}  // namespace fully_shard_test
}  // namespace tessera::test
