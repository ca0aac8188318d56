// fully_shard over the batch's axis of modules that tensor parallelism has sharded before.
#include <gtest/gtest.h>
#include <torch/nn/utils/clip_grad.h>

#include "tessera/base/errors.h"
#include "tessera/module/distribute_module.h"
#include "tests/fsdp/training.h"

namespace tessera::test {
namespace tensor_parallel_test {

/// Of two matrices in a row the first is sharded by rows, the second by columns; what is left is
/// replicated.
void shard_pairs(torch::nn::Module& module, const DeviceMesh& tp) {
  distribute_module(
      module, tp, [](const std::string& name, torch::nn::Module& part, const DeviceMesh& over) {
        auto* linear = part.as<torch::nn::LinearImpl>();
        if (linear == nullptr || name.ends_with("router")) return;
        const bool second = name.ends_with("out") || name.ends_with("down") || name.ends_with("2");
        distribute_(linear->weight, over, {Shard(second ? 1 : 0)});
        if (!second) distribute_(linear->bias, over, {Shard(0)});
      });
}

/// Ten steps with clipped gradients, as one rank does them with the whole batch.
void trains_as_one_rank(const Subject& subject, const MakeOptimizer& make, const char* text,
                        std::initializer_list<std::string> data_axes) {
  constexpr int kSteps = 10;
  constexpr double kMostNorm = 0.1;
  Model plain = subject.make();
  auto alone = make(plain.module->parameters());
  std::vector<double> norms;
  for (int step = 0; step < kSteps; ++step) {
    alone->zero_grad();
    plain.loss(subject.batch).backward();
    norms.push_back(torch::nn::utils::clip_grad_norm_(plain.module->parameters(), kMostNorm));
    alone->step();
  }
  run_ranks(DeviceMesh::parse(text).size(), [&](int) {
    const DeviceMesh mesh = init_device_mesh(text);
    const DeviceMesh tp = mesh["tp"];
    const DeviceMesh data = mesh[data_axes];
    Model model = subject.make();
    shard_pairs(*model.module, tp);
    by_parts()(model, data);
    auto optimizer = make(model.module->parameters());
    int part = 0;
    for (const auto& axis : data_axes)
      part = part * mesh.size(mesh.axis(axis)) + mesh.local_rank(axis);
    const Batch plain_part = subject.batch.part(part, data.size());
    const Batch mine = {distribute_tensor(plain_part.x, tp, {Replicate()}),
                        distribute_tensor(plain_part.y, tp, {Replicate()})};
    for (const double norm : norms) {
      optimizer->zero_grad();
      full_tensor(model.loss(mine)).backward();
      EXPECT_NEAR(torch::nn::utils::clip_grad_norm_(model.module->parameters(), kMostNorm), norm,
                  1e-10);
      optimizer->step();
      EXPECT_EQ(gathered_memory(mesh).bytes, 0);
    }
    EXPECT_EQ(parameters_differ(*model.module, *plain.module), "")
        << subject.name << " on " << text;
  });
}

const std::vector<int64_t> kPair = {6, 10, 3};

void trains_as_one_rank(const Subject& subject, std::initializer_list<const char*> meshes) {
  for (const char* text : meshes) {
    trains_as_one_rank(subject, sgd(), text, {"dp"});
    trains_as_one_rank(subject, adamw(), text, {"dp"});
  }
}

TEST(FullyShardTensorParallel, MlpsTrainAsOneRank) {
  trains_as_one_rank(mlp_subject(kPair), {"dp=2,tp=2", "dp=4,tp=2", "dp=3,tp=2", "dp=2,tp=3"});
}

TEST(FullyShardTensorParallel, GptsTrainAsOneRank) {
  trains_as_one_rank(gpt_subject(), {"dp=2,tp=2", "dp=4,tp=2"});
}

TEST(FullyShardTensorParallel, MixturesOfExpertsTrainAsOneRank) {
  trains_as_one_rank(moe_subject(), {"dp=2,tp=2", "dp=4,tp=2"});
}

TEST(FullyShardTensorParallel, ReplicasOfShardsTrainAsOneRank) {
  trains_as_one_rank(mlp_subject(kPair), adamw(), "dp=2,fs=2,tp=2", {"dp", "fs"});
}

TEST(FullyShardTensorParallel, TensorParallelismShardsFirst) {
  run_ranks(4, [](int) {
    const DeviceMesh mesh = init_device_mesh("dp=2,tp=2");
    auto net = make_mlp(kPair);
    shard_pairs(*net, mesh["tp"]);
    fully_shard(*net, mesh["dp"]);
    const auto layers = layers_of(net);
    EXPECT_EQ(sharding(layers[0]->weight).to_text(), "dp=2,tp=2 : S0#1,S0#0 : 10x6 f64");
    EXPECT_EQ(sharding(layers[1]->weight).to_text(), "dp=2,tp=2 : S0,S1 : 3x10 f64");
    EXPECT_EQ(sharding(layers[1]->bias).to_text(), "dp=2,tp=2 : S0,R : 3 f64");
    auto twice = make_mlp(kPair);
    distribute_module(*twice, mesh["dp"]);
    EXPECT_THROW(fully_shard(*twice, mesh["dp"]), InvalidArgument);
  });
}

/// Without gradients: what is computed from parameters alone keeps its tensor-parallel axes.
TEST(FullyShardTensorParallel, EvaluatesValuesComputedFromParameters) {
  run_ranks(4, [](int) {
    const DeviceMesh mesh = init_device_mesh("dp=2,tp=2");
    auto plain = make_mlp(kPair);
    auto net = make_mlp(kPair);
    shard_pairs(*net, mesh["tp"]);
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

}  // namespace tensor_parallel_test
}  // namespace tessera::test
