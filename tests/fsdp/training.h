#pragma once

#include <gtest/gtest.h>
#include <torch/optim/adamw.h>
#include <torch/optim/sgd.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "tessera/comm/threads.h"
#include "tessera/dtensor/dtensor.h"
#include "tessera/fsdp/fully_shard.h"
#include "tessera/observe/recorder.h"
#include "tests/fsdp/models.h"
#include "tests/fsdp/recompute.h"

/// A training loop that a plain and a sharded model go through alike.
namespace tessera::test {

using comm::CommOp;
using comm::init_device_mesh;
using comm::Recorder;
using comm::run_ranks;

using MakeOptimizer =
    std::function<std::unique_ptr<torch::optim::Optimizer>(const std::vector<at::Tensor>&)>;

inline MakeOptimizer sgd() {
  return [](const std::vector<at::Tensor>& parameters) {
    return std::make_unique<torch::optim::SGD>(
        parameters, torch::optim::SGDOptions(0.1).momentum(0.9).weight_decay(0.01));
  };
}

inline MakeOptimizer adamw() {
  return [](const std::vector<at::Tensor>& parameters) {
    return std::make_unique<torch::optim::AdamW>(
        parameters, torch::optim::AdamWOptions(0.01).weight_decay(0.1));
  };
}

inline Forward forward_of(torch::nn::Sequential& net) {
  return [&](const at::Tensor& x) { return net->forward(x); };
}

/// Steps of training; the losses.
inline std::vector<double> train(const Forward& forward, torch::optim::Optimizer& optimizer,
                                 const Batch& batch, int steps) {
  std::vector<double> losses;
  for (int step = 0; step < steps; ++step) {
    optimizer.zero_grad();
    const at::Tensor loss = at::mse_loss(forward(batch.x), batch.y);
    loss.backward();
    optimizer.step();
    losses.push_back(loss.item<double>());
  }
  return losses;
}

/// "" if the parameters of both agree to 1e-10, else the first that does not. Collective.
inline std::string parameters_differ(const torch::nn::Module& got, const torch::nn::Module& want) {
  const auto expected = want.named_parameters();
  for (const auto& item : got.named_parameters()) {
    const at::Tensor value = item.value().detach();
    const at::Tensor full = is_dtensor(value) ? full_tensor(value) : value;
    if (!at::allclose(full, expected[item.key()].detach(), 1e-10, 1e-10)) return item.key();
  }
  return "";
}

/// The same for gradients, which are there on both sides or on neither. Collective.
inline std::string gradients_differ(const torch::nn::Module& got, const torch::nn::Module& want) {
  const auto expected = want.named_parameters();
  for (const auto& item : got.named_parameters()) {
    const at::Tensor grad = item.value().grad();
    const at::Tensor other = expected[item.key()].grad();
    if (grad.defined() != other.defined()) return item.key() + ": on one side only";
    if (!grad.defined()) continue;
    const at::Tensor full = is_dtensor(grad) ? full_tensor(grad) : grad;
    if (!at::allclose(full, other, 1e-10, 1e-12)) return item.key();
  }
  return "";
}

/// Each layer a group.
inline void shard_layers(torch::nn::Sequential& net, const DeviceMesh& mesh,
                         const FullyShardOptions& options = {}) {
  for (auto* layer : layers_of(net)) fully_shard(*layer, mesh, options);
}

/// Each group with collectives of its own, however small it is.
inline const FullyShardOptions kUnmerged = {.merge_bytes = 0};

/// An MLP on one rank with the whole batch, and the same one sharded, with this rank's part of it.
struct Twins {
  DeviceMesh mesh;
  Batch batch;
  Batch mine;
  torch::nn::Sequential plain;
  torch::nn::Sequential net;
  std::unique_ptr<torch::optim::Optimizer> alone;      ///< of plain
  std::unique_ptr<torch::optim::Optimizer> optimizer;  ///< of net
};

inline Twins make_twins(int rank, int ranks, const FullyShardOptions& options = {},
                        const MakeOptimizer& make_optimizer = sgd()) {
  const DeviceMesh mesh = init_device_mesh("dp=" + std::to_string(ranks));
  const Batch batch = make_batch(12, kWidths.front(), kWidths.back());
  auto plain = make_mlp(kWidths);
  auto net = make_mlp(kWidths);
  shard_layers(net, mesh, options);
  return {mesh,
          batch,
          batch.part(rank, ranks),
          plain,
          net,
          make_optimizer(plain->parameters()),
          make_optimizer(net->parameters())};
}

inline void train_model(Model& model, torch::optim::Optimizer& optimizer, const Batch& batch,
                        int steps) {
  for (int step = 0; step < steps; ++step) {
    optimizer.zero_grad();
    model.loss(batch).backward();
    optimizer.step();
  }
}

/// Turns a model into a sharded one: this or another way.
using ShardModel = std::function<void(Model&, const DeviceMesh&)>;

inline ShardModel by_parts(const FullyShardOptions& options = {}) {
  return [options](Model& model, const DeviceMesh& mesh) {
    for (const auto& part : model.parts) fully_shard(*part, mesh, options);
    fully_shard(*model.module, mesh, options);
  };
}

inline ShardModel replicas_by_parts(const FullyShardOptions& options = {}) {
  return [options](Model& model, const DeviceMesh& mesh) {
    for (const auto& part : model.parts) replicate(*part, mesh, options);
    fully_shard(*model.module, ReplicateMesh(mesh), options);  // the same
  };
}

/// Ten steps on all ranks of each mesh, every rank with its part of the batch, end where one rank
/// with the whole batch ends.
inline void trains_as_one_rank(const Subject& subject, const MakeOptimizer& make_optimizer,
                               const std::vector<std::string>& meshes, const ShardModel& shard) {
  constexpr int kSteps = 10;
  Model plain = subject.make();
  train_model(plain, *make_optimizer(plain.module->parameters()), subject.batch, kSteps);
  for (const std::string& text : meshes) {
    const int ranks = DeviceMesh::parse(text).size();
    run_ranks(ranks, [&](int rank) {
      const DeviceMesh mesh = init_device_mesh(text);
      Model model = subject.make();
      auto optimizer = make_optimizer(model.module->parameters());  // it holds the same tensors
      shard(model, mesh);
      train_model(model, *optimizer, subject.batch.part(rank, ranks), kSteps);
      EXPECT_EQ(parameters_differ(*model.module, *plain.module), "")
          << subject.name << " on " << text;
      EXPECT_EQ(gathered_memory(mesh).bytes, 0) << subject.name << " on " << text;
    });
  }
}

}  // namespace tessera::test
