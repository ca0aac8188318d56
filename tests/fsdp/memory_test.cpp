// What is gathered at a time, and that nothing is left.
#include <ATen/ops/_unsafe_view.h>
#include <ATen/ops/addmm.h>
#include <ATen/ops/allclose.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/equal.h>
#include <gtest/gtest.h>

#include "tessera/dtensor/dispatch/caches.h"
#include "tessera/fsdp/control.h"
#include "tests/fsdp/training.h"

namespace tessera::test {
namespace memory_test {

TEST(FullyShardMemory, HoldsAtMostTwoGroupsAndNothingAfterBackward) {
  run_ranks(3, [](int rank) {
    const DeviceMesh mesh = init_device_mesh("dp=3");
    const Batch mine = make_batch(6, 64, 64).part(rank, 3);
    auto net = make_mlp({64, 70, 80, 90, 80, 64});
    shard_layers(net, mesh, kUnmerged);
    std::vector<int64_t> sizes;
    for (const auto& group : sharded_groups(*net)) sizes.push_back(group.gathered_bytes);
    EXPECT_EQ(sizes.size(), 5u);
    std::ranges::sort(sizes, std::greater());
    auto optimizer = adamw()(net->parameters());
    for (int step = 0; step < 4; ++step) {
      reset_peak_gathered_memory(mesh);
      train(forward_of(net), *optimizer, mine, 1);
      const GatheredMemory memory = gathered_memory(mesh);
      EXPECT_GE(memory.peak_bytes, sizes[0]);
      EXPECT_LE(memory.peak_bytes, sizes[0] + sizes[1]) << "step " << step;
      EXPECT_EQ(memory.bytes, 0);
      for (const auto& group : sharded_groups(*net)) EXPECT_FALSE(group.gathered);
    }
  });
}

/// The gathered bytes since it last looked.
class MemoryWatch {
 public:
  MemoryWatch(torch::nn::Sequential& net, const DeviceMesh& mesh) : mesh_(mesh) {
    for (const auto& group : sharded_groups(*net)) sizes_.push_back(group.gathered_bytes);
  }
  void expect_at_most(std::initializer_list<size_t> groups, const std::string& when) {
    int64_t bytes = 0;
    for (const size_t group : groups) bytes += sizes_[group];
    EXPECT_LE(gathered_memory(mesh_).peak_bytes, bytes) << when;
    reset_peak_gathered_memory(mesh_);
  }

 private:
  DeviceMesh mesh_;
  std::vector<int64_t> sizes_;
};

/// Looked at between any two layers of forward and backward: the group in use and the one after it
/// are there, and no third.
TEST(FullyShardMemory, HoldsTheGroupInUseAndTheNext) {
  run_ranks(2, [](int rank) {
    const DeviceMesh mesh = init_device_mesh("dp=2");
    const Batch mine = make_batch(6, 64, 64).part(rank, 2);
    auto net = make_mlp({64, 70, 180, 90, 80, 64});
    shard_layers(net, mesh, kUnmerged);
    auto optimizer = adamw()(net->parameters());
    train(forward_of(net), *optimizer, mine, 1);  // learns the order
    MemoryWatch watch(net, mesh);
    reset_peak_gathered_memory(mesh);
    const auto layers = layers_of(net);
    const size_t last = layers.size() - 1;
    for (int step = 0; step < 3; ++step) {
      optimizer->zero_grad();
      at::Tensor x = mine.x.clone().requires_grad_();
      for (size_t i = 0; i <= last; ++i) {
        // Its gradient comes when the backward of this layer is over.
        x.register_hook([&watch, i](const at::Tensor& gradient) {
          const std::string when = "backward of layer " + std::to_string(i);
          i == 0 ? watch.expect_at_most({0}, when) : watch.expect_at_most({i, i - 1}, when);
          return gradient;
        });
        x = layers[i]->forward(i == 0 ? x : at::tanh(x));
        watch.expect_at_most({i, i < last ? i + 1 : i - 1},
                             "forward of layer " + std::to_string(i));
      }
      at::mse_loss(x, mine.y).backward();
      EXPECT_EQ(gathered_memory(mesh).bytes, 0);
      optimizer->step();
    }
  });
}

/// Four groups of one size; what an op uses is gathered, and nothing beside it while it runs.
void holds_at_most(size_t groups,
                   const std::function<at::Tensor(const std::vector<at::Tensor>&)>& op) {
  run_ranks(2, [&](int) {
    const DeviceMesh mesh = init_device_mesh("dp=2");
    auto net = make_mlp({64, 64, 64, 64, 64});
    std::vector<at::Tensor> weights;
    for (auto* layer : layers_of(net)) weights.push_back(layer->weight);
    for (const at::Tensor& weight : weights) {
      fully_shard(std::vector<at::Tensor>{weight}, mesh, kUnmerged);
    }
    const int64_t one = sharded_groups(*net)[0].gathered_bytes;
    const at::Tensor x = test_numbers({3, 64}, 5);
    for (int step = 0; step < 4; ++step) {
      const torch::AutoGradMode records(step % 2 == 0);
      reset_peak_gathered_memory(mesh);
      at::Tensor y = op(weights);
      for (const at::Tensor& weight : weights) y = at::tanh(y + at::linear(x, weight));
      if (step % 2 == 0) y.sum().backward();
      EXPECT_EQ(gathered_memory(mesh).peak_bytes, static_cast<int64_t>(groups) * one)
          << "step " << step;
      reshard(*net);
    }
  });
}

TEST(FullyShardMemory, AnOpOnSeveralGroupsHoldsThoseAlone) {
  const at::Tensor x = test_numbers({3, 64}, 6);
  holds_at_most(2, [&](const auto& w) { return at::addmm(w[0].narrow(0, 0, 3), x, w[1]); });
  const at::Tensor row = x.narrow(0, 0, 1);
  const auto of = [](const at::Tensor& weight) { return weight.narrow(0, 0, 1); };
  holds_at_most(2, [&](const auto& w) {
    return at::cat({row, of(w[2]), of(w[0]), of(w[2])}).sum(0);
  });
  holds_at_most(3, [&](const auto& w) {
    return at::cat({row, of(w[1]), of(w[0]), of(w[3])}).sum(0);
  });
}

TEST(FullyShardMemory, NothingGrowsOverManySteps) {
  run_ranks(2, [](int rank) {
    const DeviceMesh mesh = init_device_mesh("dp=2");
    const Batch mine = make_batch(4, kWidths.front(), kWidths.back()).part(rank, 2);
    auto net = make_mlp(kWidths);
    shard_layers(net, mesh, kUnmerged);
    auto optimizer = adamw()(net->parameters());
    const Forward forward = forward_of(net);
    int64_t peak = 0;
    CacheStats warm;
    for (int step = 0; step < 200; ++step) {
      train(forward, *optimizer, mine, 1);
      if (step % 3 == 0) {
        const torch::NoGradGuard no_grad;
        net->forward(mine.x);
      }
      if (step == 20) {
        peak = gathered_memory(mesh).peak_bytes;
        warm = cache_stats();
      }
    }
    EXPECT_EQ(gathered_memory(mesh).peak_bytes, peak);
    const CacheStats after = cache_stats();
    EXPECT_LE(after.shardings, warm.shardings + 8);  // the other rank may be in the middle of an op
    EXPECT_EQ(after.decision_misses, warm.decision_misses);
  });
}

/// An op may give back the memory it was given: its holder keeps a copy of its own.
TEST(FullyShardMemory, WhatTheProgramKeepsStaysAsItWas) {
  run_ranks(2, [](int rank) {
    const DeviceMesh mesh = init_device_mesh("dp=2");
    const Batch mine = make_batch(6, 6, 3).part(rank, 2);
    auto net = make_mlp({6, 5, 3});
    shard_layers(net, mesh, kUnmerged);
    const at::Tensor weight = net->parameters()[0];
    auto optimizer = adamw()(net->parameters());
    for (int step = 0; step < 4; ++step) {
      at::Tensor kept = at::_unsafe_view(weight, {30});
      EXPECT_FALSE(is_dtensor(kept));
      const at::Tensor then = kept.detach().clone();
      train(forward_of(net), *optimizer, mine, 2);
      EXPECT_TRUE(at::equal(kept, then)) << "step " << step;
      EXPECT_FALSE(at::equal(full_tensor(weight.detach()).view({30}), then)) << "step " << step;
      EXPECT_GT(gathered_memory(mesh).bytes, 0);
      kept.reset();
      EXPECT_EQ(gathered_memory(mesh).bytes, 0) << "step " << step;
    }
  });
}

/// Tensors that inference mode made are of no use to autograd.
TEST(FullyShardMemory, InferenceModeLeavesNothingToTraining) {
  run_ranks(2, [](int rank) {
    const DeviceMesh mesh = init_device_mesh("dp=2");
    const Batch batch = make_batch(6, 6, 3);
    auto plain = make_mlp({6, 5, 3});
    auto alone = adamw()(plain->parameters());
    auto net = make_mlp({6, 5, 3});
    shard_layers(net, mesh, kUnmerged);
    auto optimizer = adamw()(net->parameters());
    for (int step = 0; step < 3; ++step) {
      {
        const c10::InferenceMode inference;
        EXPECT_TRUE(at::allclose(net->forward(batch.x), plain->forward(batch.x)));
      }
      train(forward_of(plain), *alone, batch, 1);
      train(forward_of(net), *optimizer, batch.part(rank, 2), 1);
      EXPECT_EQ(parameters_differ(*net, *plain), "") << "step " << step;
    }
  });
}

/// Everything, from the making of the model on, in inference mode.
TEST(FullyShardMemory, ModelsMayLiveInInferenceMode) {
  run_ranks(2, [](int) {
    const DeviceMesh mesh = init_device_mesh("dp=2");
    const c10::InferenceMode inference;
    const Batch batch = make_batch(6, 6, 3);
    auto plain = make_mlp({6, 5, 3});
    auto net = make_mlp({6, 5, 3});
    shard_layers(net, mesh);
    for (int i = 0; i < 3; ++i) {
      EXPECT_TRUE(at::allclose(net->forward(batch.x), plain->forward(batch.x)));
      net->parameters()[0].mul_(2);
      plain->parameters()[0].mul_(2);
    }
  });
}

}  // namespace memory_test
}  // namespace tessera::test
