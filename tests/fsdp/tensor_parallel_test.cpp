// fully_shard over the batch's axis of modules that tensor parallelism has cut before.
#include <gtest/gtest.h>
#include <torch/nn/utils/clip_grad.h>

#include "tessera/base/errors.h"
#include "tessera/comm/recorder.h"
#include "tessera/comm/threads.h"
#include "tessera/dtensor/distribute_module.h"
#include "tessera/fsdp/fully_shard.h"
#include "tests/fsdp/training.h"

namespace tessera {
namespace {

using comm::init_device_mesh;
using comm::run_ranks;
using test::adamw;
using test::Batch;
using test::layers_of;
using test::make_batch;
using test::make_mlp;
using test::parameters_differ;
using test::train;

/// Rows of the first layer, columns of the second, what is left replicated.
void cut_hidden(torch::nn::Sequential& net, const DeviceMesh& tp) {
  const auto layers = layers_of(net);
  distribute_in_place(layers[0]->weight, tp, {Shard(0)});
  distribute_in_place(layers[0]->bias, tp, {Shard(0)});
  distribute_in_place(layers[1]->weight, tp, {Shard(1)});
  distribute_module(*net, tp);
}

/// Ten steps of AdamW with clipped gradients, as one rank does them with the whole batch.
void trains_as_one_rank(const char* text, int ranks, int data_ranks,
                        std::initializer_list<std::string> data_axes) {
  const Batch batch = make_batch(12, 6, 3);
  run_ranks(ranks, [&](int) {
    const DeviceMesh mesh = init_device_mesh(text);
    const DeviceMesh tp = mesh["tp"];
    auto plain = make_mlp({6, 10, 3});
    auto net = make_mlp({6, 10, 3});
    cut_hidden(net, tp);
    for (auto* layer : layers_of(net)) fully_shard(*layer, mesh[data_axes]);
    auto alone = adamw()(plain->parameters());
    auto optimizer = adamw()(net->parameters());
    int part = 0;
    for (const auto& axis : data_axes)
      part = part * mesh.size(mesh.axis(axis)) + mesh.local_rank(axis);
    const Batch mine = batch.part(part, data_ranks);
    const at::Tensor x = distribute_tensor(mine.x, tp, {Replicate()});
    for (int step = 0; step < 10; ++step) {
      alone->zero_grad();
      optimizer->zero_grad();
      at::mse_loss(plain->forward(batch.x), batch.y).backward();
      at::mse_loss(full_tensor(net->forward(x)), mine.y).backward();
      const double norm = torch::nn::utils::clip_grad_norm_(plain->parameters(), 0.1);
      EXPECT_NEAR(torch::nn::utils::clip_grad_norm_(net->parameters(), 0.1), norm, 1e-10);
      alone->step();
      optimizer->step();
      EXPECT_EQ(gathered_memory(mesh).bytes, 0);
    }
    EXPECT_EQ(parameters_differ(*net, *plain), "") << text;
  });
}

TEST(FullyShardTensorParallel, TrainsAsOneRank) {
  trains_as_one_rank("dp=2,tp=2", 4, 2, {"dp"});
  trains_as_one_rank("dp=3,tp=2", 6, 3, {"dp"});
  trains_as_one_rank("dp=2,tp=3", 6, 2, {"dp"});
}

TEST(FullyShardTensorParallel, ReplicasOfShardsTrainAsOneRank) {
  trains_as_one_rank("dp=2,fs=2,tp=2", 8, 4, {"dp", "fs"});
}

TEST(FullyShardTensorParallel, TensorParallelismCutsFirst) {
  run_ranks(4, [](int) {
    const DeviceMesh mesh = init_device_mesh("dp=2,tp=2");
    auto net = make_mlp({6, 10, 3});
    cut_hidden(net, mesh["tp"]);
    fully_shard(*net, mesh["dp"]);
    const auto layers = layers_of(net);
    EXPECT_EQ(sharding(layers[0]->weight).to_text(), "dp=2,tp=2 : S0#1,S0#0 : 10x6 f64");
    EXPECT_EQ(sharding(layers[1]->weight).to_text(), "dp=2,tp=2 : S0,S1 : 3x10 f64");
    EXPECT_EQ(sharding(layers[1]->bias).to_text(), "dp=2,tp=2 : S0,R : 3 f64");
    auto twice = make_mlp({6, 10, 3});
    distribute_module(*twice, mesh["dp"]);
    EXPECT_THROW(fully_shard(*twice, mesh["dp"]), InvalidArgument);
  });
}

/// Without gradients: what is computed from parameters alone keeps its tensor-parallel axes.
TEST(FullyShardTensorParallel, EvaluatesValuesComputedFromParameters) {
  run_ranks(4, [](int) {
    const DeviceMesh mesh = init_device_mesh("dp=2,tp=2");
    auto plain = make_mlp({6, 10, 3});
    auto net = make_mlp({6, 10, 3});
    cut_hidden(net, mesh["tp"]);
    fully_shard(*net, mesh["dp"]);
    const at::Tensor x = make_batch(4, 6, 3).x;
    const torch::NoGradGuard no_grad;
    const at::Tensor want = at::linear(x, plain->parameters()[0].tanh() * 2);
    const at::Tensor got = at::linear(distribute_tensor(x, mesh["tp"], {Replicate()}),
                                      net->parameters()[0].tanh() * 2);
    EXPECT_EQ(sharding(got).mesh(), mesh["tp"]);
    EXPECT_TRUE(at::allclose(full_tensor(got), want, 1e-12, 1e-12));
  });
}

}  // namespace
}  // namespace tessera
