// What programs do with parameters beside forward and backward: averages, norms, snapshots, updates
// of their own. With and without gradients recorded, it happens on the shards; nothing is gathered.
#include <ATen/ops/_foreach_mul.h>
#include <ATen/ops/_foreach_norm.h>
#include <ATen/ops/ones_like.h>
#include <gtest/gtest.h>

#include "tessera/module/state.h"
#include "tests/fsdp/training.h"

namespace tessera::test {
namespace between_steps_test {

/// Runs the program on both modules' parameters, in turn; what it sends for the sharded ones.
using Program = std::function<void(const std::vector<at::Tensor>&)>;

void sends_nothing(const Program& program) {
  for (const bool records : {true, false}) {
    run_ranks(2, [&](int rank) {
      auto [mesh, batch, mine, plain, net, alone, optimizer] = make_twins(rank, 2, kUnmerged);
      train(forward_of(plain), *alone, batch, 2);
      train(forward_of(net), *optimizer, mine, 2);
      const torch::AutoGradMode mode(records);
      Recorder recorder(*comm::current_world());
      program(plain->parameters());
      program(net->parameters());
      EXPECT_EQ(recorder.count(), 0) << "grad mode " << records << ": " << recorder.to_text();
      recorder.stop();
      EXPECT_EQ(parameters_differ(*net, *plain), "");
      const torch::AutoGradMode on(true);
      train(forward_of(plain), *alone, batch, 2);
      train(forward_of(net), *optimizer, mine, 2);
      EXPECT_EQ(parameters_differ(*net, *plain), "");
    });
  }
}

TEST(BetweenSteps, AveragesOfParametersAreKeptOnTheShards) {
  sends_nothing([](const std::vector<at::Tensor>& parameters) {
    std::vector<at::Tensor> averages;
    for (const at::Tensor& p : parameters) {
      averages.push_back(p.detach().clone());
      EXPECT_EQ(is_dtensor(averages.back()), is_dtensor(p));
    }
    for (size_t i = 0; i < parameters.size(); ++i) {
      averages[i].lerp_(parameters[i].detach(), 0.1);
      averages[i].mul_(0.9).add_(parameters[i].detach(), 0.2);
    }
    for (size_t i = 0; i < parameters.size(); ++i) parameters[i].detach().copy_(averages[i]);
  });
}

TEST(BetweenSteps, ASnapshotIsSharedWithNobodyAndComesBack) {
  sends_nothing([](const std::vector<at::Tensor>& parameters) {
    std::vector<at::Tensor> kept;
    for (const at::Tensor& p : parameters) kept.push_back(p.variable_data().clone());
    const torch::NoGradGuard no_grad;
    for (const at::Tensor& p : parameters) p.zero_();
    for (size_t i = 0; i < parameters.size(); ++i) parameters[i].copy_(kept[i]);
  });
}

TEST(BetweenSteps, UpdatesOfOnesOwnWriteToTheShards) {
  sends_nothing([](const std::vector<at::Tensor>& parameters) {
    for (const at::Tensor& p : parameters) p.variable_data().add_(p.grad(), -0.01);
    const torch::NoGradGuard no_grad;
    for (const at::Tensor& p : parameters) {
      p.sub_(p.grad() * 0.01);
      p.clamp_(-0.5, 0.5);
      p.copy_(at::tanh(p) + p.sign() * 0.1);
    }
  });
}

/// A number of all ranks: what is sent is the sum of numbers, no parameter.
TEST(BetweenSteps, NormsSendNumbersOnly) {
  for (const bool records : {true, false}) {
    run_ranks(2, [&](int) {
      const DeviceMesh mesh = init_device_mesh("dp=2");
      auto plain = make_mlp(kWidths);
      auto net = make_mlp(kWidths);
      shard_layers(net, mesh, kUnmerged);
      const torch::AutoGradMode mode(records);
      Recorder recorder(*comm::current_world());
      for (size_t i = 0; i < net->parameters().size(); ++i) {
        const at::Tensor want = plain->parameters()[i].detach();
        const at::Tensor got = net->parameters()[i].detach();
        EXPECT_NEAR(got.norm().item<double>(), want.norm().item<double>(), 1e-12);
        EXPECT_NEAR(got.abs().max().item<double>(), want.abs().max().item<double>(), 1e-12);
        EXPECT_NEAR(at::_foreach_norm({got})[0].item<double>(), want.norm().item<double>(), 1e-12);
      }
      EXPECT_EQ(recorder.count(CommOp::all_gather), 0) << recorder.to_text();
      EXPECT_EQ(gathered_memory(mesh).peak_bytes, 0);
    });
  }
}

/// What stays gathered after a forward is gathered again once the shards have changed, by whatever
/// handle and on whatever way.
TEST(BetweenSteps, WritesToTheTensorsOfAStateChangeTheNextForward) {
  const std::vector<std::function<void(const at::Tensor&)>> writes = {
      [](const at::Tensor& v) { v.mul_(0.5); },
      [](const at::Tensor& v) {
        if (v.dim() > 1) v.select(1, 0).mul_(0.5);
      },
      [](const at::Tensor& v) { v.narrow(0, 0, 2).zero_(); },
      [](const at::Tensor& v) { v.detach().view(v.sizes()).add_(1); },
      [](const at::Tensor& v) { v.copy_(at::ones_like(v)); },
      [](const at::Tensor& v) { at::_foreach_mul_({v}, 0.5); },
      [](const at::Tensor& v) {
        const c10::InferenceMode inference;
        v.mul_(0.5);
      },
  };
  for (size_t i = 0; i < writes.size(); ++i) {
    run_ranks(2, [&](int) {
      const DeviceMesh mesh = init_device_mesh("dp=2");
      const Batch batch = make_batch(4, 6, 4);
      auto plain = make_mlp({6, 4});
      auto net = make_mlp({6, 4});
      fully_shard(*net, mesh, {.reshard_after_forward = false});
      const torch::NoGradGuard no_grad;
      EXPECT_TRUE(at::allclose(net->forward(batch.x), plain->forward(batch.x)));
      for (const auto& [name, tensor] : sharded_state_dict(*net)) writes[i](tensor);
      for (const at::Tensor& p : plain->parameters()) writes[i](p.detach());
      EXPECT_TRUE(at::allclose(net->forward(batch.x), plain->forward(batch.x))) << "write " << i;
    });
  }
}

/// Each rank gathers the layer again whose shard it wrote to. Both gathers have the same size, and
/// must not be taken for each other.
TEST(BetweenSteps, AWriteToTheShardOfOneRankAloneIsAnErrorOfAll) {
  const auto write_on_each_rank_to_another = [](int rank) {
    auto net = make_mlp({4, 4, 4});
    shard_layers(net, init_device_mesh("dp=2"), {.reshard_after_forward = false, .merge_bytes = 0});
    const torch::NoGradGuard no_grad;
    const at::Tensor x = make_batch(4, 4, 4).x;
    net->forward(x);
    to_local(layers_of(net)[static_cast<size_t>(rank)]->weight).zero_();
    net->forward(x);
  };
  EXPECT_THROW(run_ranks(2, write_on_each_rank_to_another), PeerError);
}

/// Passes over kept parameters send nothing, so ranks may run different numbers of them, as in
/// generation of texts of different lengths. The n-th gather of a group is the n-th of every rank,
/// with what each rank wrote to its shard before it: here rank 1 writes a pass later than rank 0.
TEST(BetweenSteps, WritesOfRanksInDifferentPassesAreGatheredTogether) {
  run_ranks(2, [](int rank) {
    auto net = make_mlp({4, 4});
    shard_layers(net, init_device_mesh("dp=2"), {.reshard_after_forward = false, .merge_bytes = 0});
    const at::Tensor weight = layers_of(net)[0]->weight;
    const at::Tensor x = make_batch(4, 4, 4).x;
    at::Tensor before = full_tensor(weight.detach());
    {
      const torch::NoGradGuard no_grad;
      at::Tensor y = net->forward(x);
      for (int pass = 0; pass < rank; ++pass) EXPECT_TRUE(at::equal(net->forward(x), y));
      to_local(weight).mul_(2);
      y = at::linear(x, weight);
      EXPECT_TRUE(at::allclose(y, at::linear(x, before * 2)));
      for (int pass = 0; pass < 3 * rank; ++pass) {
        EXPECT_TRUE(at::equal(at::linear(x, weight), y));
      }
    }
    net->forward(x).sum().backward();  // the ranks meet again
    EXPECT_TRUE(at::equal(full_tensor(weight.detach()), before * 2));
  });
}

/// The average itself may be computed with, as another model.
TEST(BetweenSteps, WhatWasComputedFromShardsMeetsPlainTensors) {
  run_ranks(2, [](int) {
    const DeviceMesh mesh = init_device_mesh("dp=2");
    const Batch batch = make_batch(4, 6, 5);
    auto net = make_mlp({6, 5});
    const at::Tensor whole = layers_of(net)[0]->weight.detach().clone();
    shard_layers(net, mesh);
    const at::Tensor half = layers_of(net)[0]->weight.detach().clone() * 0.5;
    EXPECT_TRUE(is_dtensor(half));
    EXPECT_TRUE(at::allclose(batch.x.matmul(half.t()), batch.x.matmul(whole.t()) * 0.5));
  });
}

/// A norm that a program logs, or an average that is replaced in every step, does not keep the
/// memory of the tensors that it was computed from.
TEST(BetweenSteps, WhatWasComputedFromShardsKeepsNoneOfItsOperands) {
  run_ranks(2, [](int) {
    const DeviceMesh mesh = init_device_mesh("dp=2");
    auto net = make_mlp({6, 5});
    shard_layers(net, mesh);
    const at::Tensor weight = layers_of(net)[0]->weight.detach();
    for (const auto& make : std::vector<std::function<at::Tensor()>>{
             [&] { return weight * 2; }, [&] { return weight.to(at::kFloat); }}) {
      at::Tensor operand = make();
      const auto memory = to_local(operand).storage().getWeakStorageImpl();
      const std::vector<at::Tensor> norms = {operand.norm(), operand.t().norm()};
      operand.reset();
      EXPECT_TRUE(memory.expired());
      EXPECT_TRUE(at::allclose(full_tensor(norms[0]), full_tensor(norms[1])));
    }
  });
}

/// A loss of parameters that autograd records is computed with whole ones.
TEST(BetweenSteps, WhatRequiresAGradientIsComputedWhole) {
  run_ranks(2, [](int) {
    const DeviceMesh mesh = init_device_mesh("dp=2");
    auto net = make_mlp({6, 5});
    shard_layers(net, mesh);
    const at::Tensor weight = layers_of(net)[0]->weight;
    EXPECT_FALSE(is_dtensor(weight.square()));
    EXPECT_FALSE(is_dtensor(weight - weight.detach()));
    weight.set_requires_grad(false);
    EXPECT_TRUE(is_dtensor(weight.square()));
    const at::Tensor scale = at::ones({}, at::kDouble).requires_grad_();
    EXPECT_FALSE(is_dtensor(weight * scale));
  });
}

}  // namespace between_steps_test
}  // namespace tessera::test
