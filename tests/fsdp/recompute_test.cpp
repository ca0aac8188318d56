// Parts that are computed again in backward touch their groups again.
#include "tests/fsdp/recompute.h"

#include <gtest/gtest.h>

#include <atomic>

#include "tests/fsdp/training.h"

namespace tessera::test {
namespace recompute_test {

/// Trains an MLP of which each list of layers in a row is recomputed as one; the all_gathers of the
/// last step.
int gathers_of_a_step(const std::vector<std::vector<size_t>>& recomputed) {
  std::atomic<int> gathers = 0;
  run_ranks(2, [&](int rank) {
    const DeviceMesh mesh = init_device_mesh("dp=2");
    const std::vector<int64_t> widths = {6, 10, 7, 9, 3};
    const Batch batch = make_batch(12, widths.front(), widths.back());
    auto plain = make_mlp(widths);
    auto net = make_mlp(widths);
    shard_layers(net, mesh, kUnmerged);
    const auto layers = layers_of(net);
    std::vector<Forward> functions;
    for (const auto& indices : recomputed) {
      functions.push_back([&layers, indices](at::Tensor x) {
        for (const size_t i : indices) {
          x = layers[i]->forward(x);
          if (i + 1 < layers.size()) x = at::tanh(x);
        }
        return x;
      });
    }
    const Forward forward = [&](at::Tensor x) {
      x = x.detach().requires_grad_();  // so that autograd enters the first function too
      for (const Forward& function : functions) x = Recompute::apply(x, &function);
      return x;
    };
    auto alone = adamw()(plain->parameters());
    auto optimizer = adamw()(net->parameters());
    train(forward_of(plain), *alone, batch, 10);
    train(forward, *optimizer, batch.part(rank, 2), 9);
    Recorder recorder(*comm::current_world());
    train(forward, *optimizer, batch.part(rank, 2), 1);
    recorder.stop();
    EXPECT_EQ(recorder.count(CommOp::reduce_scatter), 4) << recorder.to_text();
    gathers = recorder.count(CommOp::all_gather);
    EXPECT_EQ(parameters_differ(*net, *plain), "");
    EXPECT_EQ(gathered_memory(mesh).bytes, 0);
  });
  return gathers;
}

/// The recomputation and its backward are one run: no more is gathered than without it.
TEST(FullyShardRecompute, OneLayerAtATimeGathersNoMore) {
  EXPECT_EQ(gathers_of_a_step({{0}, {1}, {2}, {3}}), 4 + 3);
}

/// What was resharded between recomputing a layer and its backward comes a third time.
TEST(FullyShardRecompute, SeveralLayersTouchTheirGroupsAgain) {
  EXPECT_GT(gathers_of_a_step({{0, 1}, {2, 3}}), 4 + 3);
  EXPECT_GT(gathers_of_a_step({{0, 1, 2, 3}}), 4 + 3);
}

/// Each recomputed layer has a backward of its own; what travels together is still reduced once.
TEST(FullyShardRecompute, MergedGroupsAreReducedOnce) {
  run_ranks(2, [](int rank) {
    auto [mesh, batch, mine, plain, net, alone, optimizer] = make_twins(rank, 2, {});
    std::vector<Forward> functions;
    for (auto* layer : layers_of(net)) {
      functions.push_back([layer](const at::Tensor& x) { return layer->forward(x); });
    }
    const Forward forward = [&](at::Tensor x) {
      x = x.detach().requires_grad_();
      for (size_t i = 0; i < functions.size(); ++i) {
        x = Recompute::apply(i > 0 ? at::tanh(x) : x, &functions[i]);
      }
      return x;
    };
    train(forward_of(plain), *alone, batch, 4);
    train(forward, *optimizer, mine, 3);
    Recorder recorder(*comm::current_world());
    train(forward, *optimizer, mine, 1);
    recorder.stop();
    EXPECT_EQ(recorder.count(CommOp::reduce_scatter), 1) << recorder.to_text();
    EXPECT_EQ(recorder.count(CommOp::all_gather), 1) << recorder.to_text();
    EXPECT_EQ(parameters_differ(*net, *plain), "");
    EXPECT_EQ(gathered_memory(mesh).bytes, 0);
  });
}

}  // namespace recompute_test
}  // namespace tessera::test
