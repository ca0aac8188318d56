// After an error training goes on as if nothing was.
#include <gtest/gtest.h>

#include "tessera/base/errors.h"
#include "tests/fsdp/training.h"

namespace tessera::test {
namespace {

/// An error in forward, and one in backward, on all ranks; then training goes on as if nothing was.
TEST(FullyShardAfterErrors, TrainingGoesOn) {
  run_ranks(2, [](int rank) {
    const DeviceMesh mesh = init_device_mesh("dp=2");
    const Batch batch = make_batch(12, kWidths.front(), kWidths.back());
    const Batch mine = batch.part(rank, 2);
    auto plain = make_mlp(kWidths);
    auto net = make_mlp(kWidths);
    shard_layers(net, mesh);
    auto alone = sgd()(plain->parameters());
    auto optimizer = sgd()(net->parameters());
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

}  // namespace
}  // namespace tessera::test
