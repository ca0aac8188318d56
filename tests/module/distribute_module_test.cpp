#include "tessera/module/distribute_module.h"

#include <gtest/gtest.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/adam.h>

#include "tessera/base/errors.h"
#include "tessera/comm/processes.h"
#include "tessera/comm/threads.h"
#include "tessera/observe/recorder.h"
#include "tests/support/parts.h"
#include "tests/support/processes.h"

namespace tessera {
namespace distribute_module_test {

using comm::init_device_mesh;
using comm::run_ranks;
using test::whole_numbers;

struct MlpImpl : torch::nn::Module {
  MlpImpl() : up(6, 10), down(10, 4) {
    register_module("up", up);
    register_module("down", down);
    to(at::kDouble);
    uint64_t seed = 1;
    const torch::NoGradGuard no_grad;
    for (auto& p : parameters()) p.copy_(whole_numbers(p.sizes().vec(), ++seed) / 10);
  }
  at::Tensor forward(const at::Tensor& x) { return down(torch::relu(up(x))); }

  torch::nn::Linear up, down;
};
TORCH_MODULE(Mlp);

/// Columns of the first layer, rows of the second; the last bias is left alone.
void tensor_parallel(const std::string& name, torch::nn::Module& module, const DeviceMesh& mesh) {
  auto* linear = module.as<torch::nn::LinearImpl>();
  if (linear == nullptr) return;
  distribute_(linear->weight, mesh, {Shard(name == "up" ? 0 : 1)});
  if (name == "up") distribute_(linear->bias, mesh, {Shard(0)});
}

/// Three steps of Adam; what the loss was.
template <class Model>
std::vector<double> train(Model& model, const std::vector<at::Tensor>& parameters,
                          const at::Tensor& x, const at::Tensor& y) {
  torch::optim::Adam adam(parameters, torch::optim::AdamOptions(0.1));
  std::vector<double> losses;
  for (int step = 0; step < 3; ++step) {
    adam.zero_grad();
    const at::Tensor loss = (model.forward(x) - y).pow(2).mean();
    loss.backward();
    adam.step();
    losses.push_back(loss.template item<double>());
  }
  return losses;
}

/// A sharded model trains as the plain one does, with an optimizer made before the change.
void trains_as_the_plain_module() {
  const DeviceMesh mesh = init_device_mesh("tp=2");
  const at::Tensor x = whole_numbers({5, 6}, 20) / 10;
  const at::Tensor y = whole_numbers({5, 4}, 21) / 10;
  Mlp plain;
  const auto want = train(*plain, plain->parameters(), x, y);

  Mlp model;
  const auto handles = model->parameters();  // as an optimizer would hold them
  auto sharded = distribute_module(
      model, mesh,
      {.partition = tensor_parallel,
       .input = [](torch::nn::Module&, std::span<at::Tensor> in,
                   const DeviceMesh& on) { in[0] = distribute_tensor(in[0], on, {Replicate()}); },
       .output = [](torch::nn::Module&, std::span<at::Tensor> out,
                    const DeviceMesh&) { out[0] = full_tensor(out[0]); }});
  const auto got = train(sharded, handles, x, y);
  for (size_t i = 0; i < want.size(); ++i) EXPECT_NEAR(got[i], want[i], 1e-12);
  EXPECT_EQ(sharding(model->up->weight).placements_text(), "S0");
  EXPECT_TRUE(sharding(model->down->bias).is_replicated());
  for (size_t i = 0; i < handles.size(); ++i) {
    EXPECT_TRUE(handles[i].is_leaf() && handles[i].requires_grad());
    EXPECT_TRUE(
        at::allclose(full_tensor(handles[i].detach()), plain->parameters()[i].detach(), 0, 1e-12));
  }
}

TEST(DistributeModule, TrainsAsThePlainModuleDoes) {
  run_ranks(2, [](int) { trains_as_the_plain_module(); });
}

const testing::Scenario kTrain("train", trains_as_the_plain_module);

TEST(DistributeModule, TrainsOnProcessesToo) {
  EXPECT_EQ(testing::failures(testing::run_processes(kTrain, {.size = 2})), "");
}

TEST(DistributeModule, WhatIsNotPartitionedIsReplicatedFromTheSourceRank) {
  run_ranks(2, [](int rank) {
    const DeviceMesh mesh = init_device_mesh("tp=2");
    torch::nn::BatchNorm1d norm(3);
    {
      const torch::NoGradGuard no_grad;
      norm->weight.fill_(rank + 1);
    }
    distribute_module(*norm, mesh);
    for (const auto& p : norm->parameters()) EXPECT_TRUE(is_dtensor(p));
    for (const auto& b : norm->buffers()) EXPECT_TRUE(sharding(b).is_replicated());
    EXPECT_TRUE(at::equal(to_local(norm->weight.detach()), at::ones({3})));
    distribute_module(*norm, mesh);  // changes nothing
    const DeviceMesh other = init_device_mesh("other=2");
    EXPECT_THROW(distribute_module(*norm, other), InvalidArgument);
  });
}

TEST(DistributeModule, ReducedGradientsLieAsTheirParameters) {
  run_ranks(4, [](int) {
    const DeviceMesh mesh = init_device_mesh("dp=2,tp=2");
    const auto train_once = [&](bool reduce) {
      Mlp model;
      distribute_module(
          *model, mesh,
          [](const std::string& name, torch::nn::Module& module, const DeviceMesh& on) {
            auto* linear = module.as<torch::nn::LinearImpl>();
            if (name == "up") distribute_(linear->weight, on, {Shard(0), Shard(1)});
          });
      if (reduce) reduce_gradients(*model);
      const at::Tensor x =
          distribute_tensor(whole_numbers({6, 6}, 20), mesh, {Shard(0), Replicate()});
      model->forward(x).pow(2).sum().backward();
      return model;
    };
    const Mlp left = train_once(false);
    const Mlp reduced = train_once(true);
    bool some_partial = false;
    for (size_t i = 0; i < left->parameters().size(); ++i) {
      const at::Tensor parameter = reduced->parameters()[i];
      some_partial |= sharding(left->parameters()[i].grad()).has_partial();
      EXPECT_EQ(sharding(parameter.grad()).placements_text(),
                sharding(parameter).placements_text());
      EXPECT_TRUE(at::allclose(full_tensor(parameter.grad()),
                               full_tensor(left->parameters()[i].grad()), 1e-12, 1e-12));
    }
    EXPECT_TRUE(some_partial) << "there was something to reduce";
  });
}

TEST(DistributeModule, SharedParametersAreDistributedOnce) {
  run_ranks(2, [](int) {
    const DeviceMesh mesh = init_device_mesh("tp=2");
    Mlp first;
    Mlp second;
    second->up->weight = first->up->weight;  // one tensor, two members
    distribute_module(*first, mesh, tensor_parallel);
    EXPECT_TRUE(is_dtensor(second->up->weight));
    EXPECT_TRUE(second->up->weight.is_same(first->up->weight));
  });
}

struct ManyImpl : torch::nn::Module {
  explicit ManyImpl(int seed) {
    for (int i = 0; i < 100; ++i) {
      const at::Tensor value = whole_numbers({4, 4}, static_cast<uint64_t>(i)) + seed;
      register_parameter("p" + std::to_string(i), value);
    }
    register_parameter("tied", parameters()[5]);
    register_buffer("steps", torch::full({}, seed, at::kLong));
  }
};

TEST(DistributeModule, ManyParametersShareMessages) {
  run_ranks(3, [](int rank) {
    const DeviceMesh mesh = init_device_mesh("dp=2@2,1");
    ManyImpl model(rank);
    comm::Recorder recorder(*comm::current_world());
    distribute_module(model, mesh);
    // Two for all parameters, one for the number.
    EXPECT_EQ(recorder.count(), rank == 0 ? 0 : 3) << recorder.to_text();
    const ManyImpl source(2);
    for (const auto& item : model.named_parameters()) {
      EXPECT_TRUE(is_dtensor(item.value()) && item.value().requires_grad());
      if (rank == 0) continue;
      const at::Tensor local = to_local(item.value().detach());
      EXPECT_TRUE(at::equal(local, source.named_parameters()[item.key()].detach())) << item.key();
      EXPECT_EQ(local.storage().nbytes(), local.nbytes()) << "memory of its own";
    }
    EXPECT_TRUE(model.named_parameters()["tied"].is_same(model.named_parameters()["p5"]));
    ManyImpl another(rank);
    if (rank != 0) {
      EXPECT_EQ(to_local(model.buffers()[0]).item<int64_t>(), 2);
      EXPECT_THROW(distribute_module(another, mesh, {}, {.source = 2}), InvalidArgument);
    }
  });
}

TEST(DistributeInPlace, CarriesTheGradientAndForgetsThePlainTensor) {
  run_ranks(2, [](int) {
    const DeviceMesh mesh = init_device_mesh("tp=2");
    at::Tensor w = whole_numbers({4, 3}).requires_grad_();
    const at::Tensor alive = w * 2;  // keeps the node that gathers w's gradient
    alive.sum().backward();
    distribute_(w, mesh, {Shard(0)});
    EXPECT_TRUE(at::equal(full_tensor(w.grad()), at::full({4, 3}, 2.0, at::kDouble)));
    (w * 3).sum().backward();
    EXPECT_TRUE(at::equal(full_tensor(w.grad()), at::full({4, 3}, 5.0, at::kDouble)));
    distribute_(w, mesh, {Shard(1)});
    EXPECT_EQ(sharding(w).placements_text(), "S1");
    EXPECT_TRUE(at::equal(full_tensor(w.detach()), whole_numbers({4, 3})));
  });
}

TEST(DistributeInPlace, RefusesWhatIsNoLeaf) {
  run_ranks(2, [](int) {
    const DeviceMesh mesh = init_device_mesh("tp=2");
    const at::Tensor w = whole_numbers({4, 3}).requires_grad_();
    EXPECT_THROW(distribute_(w * 2, mesh, {Shard(0)}), InvalidArgument);
    EXPECT_THROW(distribute_(w.detach().view({12}), mesh, {Shard(0)}), InvalidArgument);
    EXPECT_THROW(distribute_(at::Tensor(), mesh, {Shard(0)}), InvalidArgument);
    EXPECT_THROW(distribute_(w, mesh, {Shard(5)}), InvalidArgument);
    EXPECT_FALSE(is_dtensor(w)) << "untouched after an error";
  });
}

}  // namespace distribute_module_test
}  // namespace tessera
