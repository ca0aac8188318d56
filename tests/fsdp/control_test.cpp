// Settings of groups after fully_shard: they change what is sent, never what is computed.
#include "tessera/fsdp/control.h"

#include <gtest/gtest.h>

#include "tessera/base/errors.h"
#include "tests/fsdp/training.h"

namespace tessera::test {
namespace control_test {

at::Tensor loss_of(torch::nn::Sequential& net, const Batch& batch) {
  return (net->forward(batch.x) - batch.y).square().sum();
}

FullyShardOptions summed(int64_t merge_bytes) {
  return {.gradient_divide_factor = 1, .merge_bytes = merge_bytes};
}

/// A net on a mesh of four ranks, and the same one plain with the gradients of the whole batch.
struct FourRanks {
  FourRanks(const std::string& text, int rank, const FullyShardOptions& options)
      : mesh(init_device_mesh(text)) {
    const Batch batch = make_batch(16, kWidths.front(), kWidths.back());
    loss_of(plain, batch).backward();
    for (int i = 0; i < 2; ++i) micro.push_back(batch.part(rank, 4).part(i, 2));
    shards = text != "all=4";
    for (auto* layer : layers_of(net)) {
      shards ? fully_shard(*layer, mesh, options) : replicate(*layer, mesh, options);
    }
  }
  DeviceMesh mesh;
  torch::nn::Sequential plain = make_mlp(kWidths);
  torch::nn::Sequential net = make_mlp(kWidths);
  std::vector<Batch> micro;  // the batches of a step
  bool shards = true;
};

/// Twice, so that the second time groups are merged where they may be.
void replicas_agree_once(const std::string& text, int64_t merge_bytes) {
  run_ranks(4, [&](int rank) {
    FourRanks four(text, rank, summed(merge_bytes));
    Recorder recorder(*comm::current_world());
    for (int step = 0; step < 3; ++step) {
      four.net->zero_grad();
      recorder.clear();
      set_requires_all_reduce(*four.net, false);
      loss_of(four.net, four.micro[0]).backward();
      EXPECT_EQ(recorder.count(CommOp::all_reduce), 0) << recorder.to_text();
      EXPECT_EQ(recorder.count(CommOp::reduce_scatter) > 0, four.shards);
      for (const auto& p : four.net->parameters()) EXPECT_FALSE(p.grad().defined());
      set_requires_gradient_sync(*four.net, true);  // both
      loss_of(four.net, four.micro[1]).backward();
      EXPECT_GT(recorder.count(CommOp::all_reduce), 0);
      EXPECT_EQ(gradients_differ(*four.net, *four.plain), "") << text << ", step " << step;
    }
  });
}

TEST(FullyShardControl, ReplicasReduceTheSumOfSeveralBatches) {
  for (const int64_t merge_bytes : {0, 1 << 20}) {
    replicas_agree_once("dp=2,fs=2", merge_bytes);
    replicas_agree_once("all=4", merge_bytes);
  }
}

/// What a replica kept goes out also if the last batch brings nothing to a parameter; and without a
/// replicate axis there is nothing to keep.
TEST(FullyShardControl, WhatReplicasKeptIsNotLost) {
  run_ranks(4, [](int rank) {
    FourRanks four("dp=2,fs=2", rank, summed(0));
    set_requires_all_reduce(*four.net, false);
    for (const Batch& batch : four.micro) loss_of(four.net, batch).backward();
    set_requires_all_reduce(*four.net, true);
    auto* last = layers_of(four.net).back();
    (last->forward(at::ones({1, 7}, at::kDouble)).sum() * 0).backward();
    EXPECT_EQ(gradients_differ(*four.net, *four.plain), "");
    FourRanks one_axis("dp=4", rank, summed(0));
    set_requires_all_reduce(*one_axis.net, false);
    for (const Batch& batch : one_axis.micro) loss_of(one_axis.net, batch).backward();
    EXPECT_EQ(gradients_differ(*one_axis.net, *one_axis.plain), "");
  });
}

/// Of three layers: what backward gathered is there for the next forward, until shards change.
TEST(FullyShardControl, WhatBackwardGatheredMayStay) {
  run_ranks(4, [](int rank) {
    FourRanks four("dp=4", rank, summed(0));
    Recorder recorder(*comm::current_world());
    const auto gathers = [&](const Batch& batch) {
      recorder.clear();
      loss_of(four.net, batch).backward();
      return recorder.count(CommOp::all_gather);
    };
    gathers(four.micro[0]);
    EXPECT_EQ(gathered_memory(four.mesh).bytes, 0);
    four.net->zero_grad();
    set_reshard_after_backward(*four.net, false);
    EXPECT_EQ(gathers(four.micro[0]), 4) << recorder.to_text();  // the first is not needed again
    EXPECT_GT(gathered_memory(four.mesh).bytes, 0);
    EXPECT_LE(gathers(four.micro[1]), 2) << recorder.to_text();
    EXPECT_EQ(gradients_differ(*four.net, *four.plain), "");
    {
      const torch::NoGradGuard no_grad;
      for (at::Tensor& p : four.net->parameters()) p.mul_(0.5);
      for (at::Tensor& p : four.plain->parameters()) p.mul_(0.5);
    }
    EXPECT_EQ(gathered_memory(four.mesh).bytes, 0);
    set_reshard_after_backward(*four.net, true);
    four.net->zero_grad();
    four.plain->zero_grad();
    loss_of(four.plain, make_batch(16, kWidths.front(), kWidths.back())).backward();
    for (const Batch& batch : four.micro) EXPECT_EQ(gathers(batch), 4);
    EXPECT_EQ(gradients_differ(*four.net, *four.plain), "");
    EXPECT_EQ(gathered_memory(four.mesh).bytes, 0);
  });
}

/// Of three layers forward gathers each; backward the second again, over as many ranks as are said.
TEST(FullyShardControl, WhatForwardGatheredMayStayFromNowOn) {
  run_ranks(4, [](int rank) {
    FourRanks four("dp=4", rank, summed(0));
    Recorder recorder(*comm::current_world());
    const auto gathers = [&](std::variant<bool, int> reshard) {
      set_reshard_after_forward(*four.net, reshard);
      recorder.clear();
      loss_of(four.net, four.micro[0]).backward();
      std::vector<size_t> ranks;
      for (const auto& event : recorder.events()) {
        if (event.op == CommOp::all_gather) ranks.push_back(event.group->ranks.size());
      }
      return ranks;
    };
    EXPECT_EQ(gathers(true), (std::vector<size_t>{4, 4, 4, 4}));
    EXPECT_EQ(gathers(false), (std::vector<size_t>{4, 4, 4}));
    EXPECT_EQ(gathers(2), (std::vector<size_t>{4, 4, 4, 2}));
    EXPECT_EQ(gathers(false), (std::vector<size_t>{4, 4, 4}));
    EXPECT_THROW(set_reshard_after_forward(*four.net, 3), InvalidArgument);
  });
}

/// Groups of one bucket that get different settings are split.
TEST(FullyShardControl, AnOptionOfOneGroupOfSeveralIsItsOwn) {
  run_ranks(4, [](int rank) {
    FourRanks four("dp=4", rank, summed(1 << 20));
    for (const Batch& batch : four.micro) loss_of(four.net, batch).backward();
    EXPECT_EQ(sharded_groups(*four.net).back().merged, 0U);
    set_gradient_divide_factor(*four.net, 4);
    EXPECT_EQ(sharded_groups(*four.net).back().merged, 0U);
    set_gradient_divide_factor(*layers_of(four.net)[0], 1);
    EXPECT_EQ(sharded_groups(*four.net).back().merged, 2U);
    four.net->zero_grad();
    for (const Batch& batch : four.micro) loss_of(four.net, batch).backward();
    for (auto* layer : layers_of(four.plain)) {
      if (layer != layers_of(four.plain)[0]) layer->weight.mutable_grad() /= 4;
      if (layer != layers_of(four.plain)[0]) layer->bias.mutable_grad() /= 4;
    }
    EXPECT_EQ(gradients_differ(*four.net, *four.plain), "");
  });
}

/// Each rank runs a row through another of two experts, which are one group.
TEST(FullyShardControl, RanksMayUseDifferentParametersOfAGroup) {
  run_ranks(2, [](int rank) {
    const DeviceMesh mesh = init_device_mesh("dp=2");
    const at::Tensor x = test_numbers({2, 64}, 5);
    auto plain = make_mlp({64, 64, 64});
    auto net = make_mlp({64, 64, 64});
    fully_shard(*net, mesh, {.gradient_divide_factor = 1});
    set_reduce_unused_parameters(*net, true);
    for (int step = 0; step < 3; ++step) {
      plain->zero_grad();
      net->zero_grad();
      for (int row = 0; row < 2; ++row) {
        layers_of(plain)[row]->forward(x[row]).square().sum().backward();
      }
      layers_of(net)[rank]->forward(x[rank]).square().sum().backward();
      EXPECT_EQ(gradients_differ(*net, *plain), "") << "step " << step;
    }
  });
}

TEST(FullyShardControl, AGatherMayBeStartedAndWaitedForLater) {
  run_ranks(2, [](int) {
    const DeviceMesh mesh = init_device_mesh("dp=2");
    auto net = make_mlp(kWidths);
    shard_layers(net, mesh, kUnmerged);
    const auto all_gathered = [&] {
      const auto groups = sharded_groups(*net);
      return std::ranges::all_of(groups, [](const auto& group) { return group.gathered; });
    };
    Recorder recorder(*comm::current_world());
    UnshardHandle handle = unshard_async(*net);
    EXPECT_FALSE(all_gathered());
    EXPECT_EQ(recorder.count(CommOp::all_gather), 3);
    handle.wait();
    EXPECT_TRUE(all_gathered());
    handle.wait();
    reshard(*net);
    EXPECT_EQ(gathered_memory(mesh).bytes, 0);
    UnshardHandle late = unshard_async(*net);
    reshard(*net);
    late.wait();  // resharded before: nothing to wait for
    EXPECT_EQ(gathered_memory(mesh).bytes, 0);
    UnshardHandle unused = unshard_async(*net);  // whatever touches a parameter waits for it
    recorder.clear();
    EXPECT_EQ(net->forward(at::ones({1, kWidths.front()}, at::kDouble)).size(1), kWidths.back());
    EXPECT_EQ(recorder.count(), 0);
  });
}

TEST(FullyShardControl, SettingsStayWhileBackwardRuns) {
  run_ranks(2, [](int rank) {
    auto [mesh, batch, mine, plain, net, alone, optimizer] = make_twins(rank, 2);
    auto& module = *net;
    const at::Tensor out = net->forward(mine.x);
    out.register_hook([&](const at::Tensor& gradient) -> at::Tensor {
      unshard(module);  // whatever is used in backward makes it known
      return gradient;
    });
    layers_of(net)[0]->weight.register_hook([&](const at::Tensor& gradient) -> at::Tensor {
      EXPECT_THROW(set_gradient_divide_factor(module, 2), InvalidArgument);
      return gradient;
    });
    out.sum().backward();
    EXPECT_THROW(set_gradient_divide_factor(module, 0), InvalidArgument);
  });
}

}  // namespace control_test
}  // namespace tessera::test
