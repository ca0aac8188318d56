// After an error training goes on as if nothing was.
#include <gtest/gtest.h>

#include "tessera/base/errors.h"
#include "tests/fsdp/training.h"

namespace tessera::test {
namespace after_errors_test {

/// An error in forward, and one in backward, on all ranks; then training goes on as if nothing was.
TEST(FullyShardAfterErrors, TrainingGoesOn) {
  run_ranks(2, [](int rank) {
    auto [mesh, batch, mine, plain, net, alone, optimizer] = make_twins(rank, 2);
    for (int round = 0; round < 3; ++round) {
      train(forward_of(plain), *alone, batch, 2);
      train(forward_of(net), *optimizer, mine, 2);
      EXPECT_ANY_THROW(layers_of(net)[1]->forward(at::ones({2, 99}, at::kDouble)));
      optimizer->zero_grad();
      at::Tensor hidden = layers_of(net)[1]->forward(at::tanh(layers_of(net)[0]->forward(mine.x)));
      hidden.register_hook(
          [](const at::Tensor&) -> at::Tensor { throw InvalidArgument("a hook of the test"); });
      const at::Tensor out = layers_of(net)[2]->forward(hidden);
      EXPECT_ANY_THROW(at::mse_loss(out, mine.y).backward());
    }
    EXPECT_EQ(parameters_differ(*net, *plain), "");
    train(forward_of(net), *optimizer, mine, 1);
    EXPECT_EQ(gathered_memory(mesh).bytes, 0);
  });
}

/// A backward that failed is run once more, without a forward between them.
TEST(FullyShardAfterErrors, AFailedBackwardCanBeRepeated) {
  run_ranks(2, [](int rank) {
    const DeviceMesh mesh = init_device_mesh("dp=2");
    const Batch batch = make_batch(4, kWidths.front(), kWidths.back());
    const Batch mine = batch.part(rank, 2);
    auto plain = make_mlp(kWidths);
    auto net = make_mlp(kWidths);
    shard_layers(net, mesh);
    at::mse_loss(plain->forward(batch.x), batch.y).backward();
    bool fails = true;
    const auto layers = layers_of(net);
    const at::Tensor hidden = at::tanh(layers[0]->forward(mine.x));
    hidden.register_hook([&](const at::Tensor& gradient) -> at::Tensor {
      if (fails) throw InvalidArgument("a hook of the test");
      return gradient;
    });
    const at::Tensor out = layers[2]->forward(at::tanh(layers[1]->forward(hidden)));
    const at::Tensor loss = at::mse_loss(out, mine.y);
    EXPECT_ANY_THROW(loss.backward({}, /*retain_graph=*/true));
    fails = false;
    net->zero_grad();  // the last layer's had come before it failed
    loss.backward();
    EXPECT_EQ(gathered_memory(mesh).bytes, 0);
    EXPECT_EQ(gradients_differ(*net, *plain), "");
  });
}

/// A forward that ends in the middle, while the next group is on its way.
TEST(FullyShardAfterErrors, AForwardMayEndInTheMiddle) {
  run_ranks(2, [](int rank) {
    auto [mesh, batch, mine, plain, net, alone, optimizer] = make_twins(rank, 2, kUnmerged);
    for (int round = 0; round < 4; ++round) {
      train(forward_of(plain), *alone, batch, 2);
      train(forward_of(net), *optimizer, mine, 2);
      EXPECT_EQ(gathered_memory(mesh).bytes, 0) << "round " << round;
      const torch::AutoGradMode records(round % 2 == 0);
      EXPECT_ANY_THROW({
        layers_of(net)[1]->forward(at::tanh(layers_of(net)[0]->forward(mine.x)));
        throw InvalidArgument("the program of the test");
      });
    }
    train(forward_of(plain), *alone, batch, 1);
    train(forward_of(net), *optimizer, mine, 1);
    EXPECT_EQ(parameters_differ(*net, *plain), "");
    EXPECT_EQ(gathered_memory(mesh).bytes, 0);
  });
}

/// An error before any gradient came, and one after all but the last group's, with and without
/// reducing: the gradients of the next backward hold nothing of it, nor of what was kept back.
void nothing_arrives_later(bool sync, size_t layer, const FullyShardOptions& options) {
  run_ranks(2, [&](int rank) {
    auto [mesh, batch, mine, plain, net, alone, optimizer] = make_twins(rank, 2, options);
    for (int round = 0; round < 3; ++round) {
      at::Tensor x = mine.x;
      for (size_t i = 0; i < 3; ++i) {
        x = layers_of(net)[i]->forward(x);
        if (i == layer) {
          x.register_hook(
              [](const at::Tensor&) -> at::Tensor { throw InvalidArgument("a hook of the test"); });
        }
        x = at::tanh(x);
      }
      set_requires_gradient_sync(*net, sync);
      EXPECT_THROW(x.sum().backward(), InvalidArgument);
      set_requires_gradient_sync(*net, true);
      plain->zero_grad();
      net->zero_grad();
      at::mse_loss(plain->forward(batch.x), batch.y).backward();
      at::mse_loss(net->forward(mine.x), mine.y).backward();
      EXPECT_EQ(gradients_differ(*net, *plain), "") << "sync " << sync << ", layer " << layer;
      EXPECT_EQ(gathered_memory(mesh).bytes, 0);
    }
  });
}

TEST(FullyShardAfterErrors, NothingOfAFailedBackwardArrivesLater) {
  for (const bool sync : {true, false}) {
    for (const size_t layer : {0, 2}) {
      nothing_arrives_later(sync, layer, kUnmerged);
      nothing_arrives_later(sync, layer, {});
    }
  }
}

}  // namespace after_errors_test
}  // namespace tessera::test
