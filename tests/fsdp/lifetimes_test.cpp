// Modules that end before, in or after a step of others, and before or after their world.
#include <gtest/gtest.h>

#include "tessera/base/errors.h"
#include "tessera/fsdp/control.h"
#include "tests/fsdp/training.h"

namespace tessera::test {
namespace lifetimes_test {

/// Python's collector may free a model that is not used any more sooner on one rank than on
/// another. What the others send, and in which order, does not change.
void ends_earlier_on_one_rank(const FullyShardOptions& options) {
  run_ranks(2, [&](int rank) {
    auto [mesh, batch, mine, plain, net, alone, optimizer] = make_twins(rank, 2, kUnmerged);
    auto old = make_mlp({6, 40, 40, 3});
    shard_layers(old, mesh, options);
    auto other = sgd()(old->parameters());
    train(forward_of(old), *other, make_batch(4, 6, 3), 3);
    other.reset();
    Recorder recorder(*comm::current_world());
    std::vector<std::vector<CommOp>> sent;
    for (int step = 0; step < 8; ++step) {
      if (step == (rank == 0 ? 3 : 5)) old = nullptr;
      recorder.clear();
      train(forward_of(plain), *alone, batch, 1);
      train(forward_of(net), *optimizer, mine, 1);
      sent.emplace_back();
      for (const auto& event : recorder.events()) sent.back().push_back(event.op);
      if (step > 1) {
        EXPECT_EQ(sent.back(), sent[1]) << "step " << step;
      }
    }
    EXPECT_EQ(parameters_differ(*net, *plain), "");
    EXPECT_EQ(gathered_memory(mesh).bytes, 0);
  });
}

TEST(FullyShardLifetimes, AModuleMayEndEarlierOnOneRankThanOnAnother) {
  ends_earlier_on_one_rank(kUnmerged);
  ends_earlier_on_one_rank({});
}

/// What an evaluation left unsharded is resharded by the next step, whatever becomes of other
/// groups.
TEST(FullyShardLifetimes, TheGroupInUseIsLetGoThoughOthersArePartedOrEnd) {
  run_ranks(2, [](int rank) {
    auto [mesh, batch, mine, plain, net, alone, optimizer] = make_twins(rank, 2, {});
    auto gone = make_mlp({6, 40});
    auto extra = make_mlp({6, 90});
    shard_layers(gone, mesh, kUnmerged);
    shard_layers(extra, mesh, kUnmerged);
    train(forward_of(net), *optimizer, mine, 3);
    EXPECT_EQ(sharded_groups(*net)[2].merged, 0u);
    const int64_t bytes = sharded_groups(*net)[0].merged_bytes;
    const torch::NoGradGuard no_grad;
    extra->forward(mine.x);
    EXPECT_GT(gathered_memory(mesh).bytes, bytes);
    set_reshard_after_backward(*layers_of(net)[0], false);  // it no longer travels with the others
    EXPECT_NE(sharded_groups(*net)[2].merged, 0u);
    gone = nullptr;
    net->forward(mine.x);
    EXPECT_LE(gathered_memory(mesh).bytes, bytes);
  });
}

/// What is left of its graph produces no gradient; that of others is right.
TEST(FullyShardLifetimes, AModuleMayEndBetweenItsForwardAndItsBackward) {
  run_ranks(2, [](int rank) {
    auto [mesh, batch, mine, plain, net, alone, optimizer] = make_twins(rank, 2, {});
    for (int step = 0; step < 3; ++step) {
      auto head = make_mlp({3, 40, 3});
      optimizer->zero_grad();
      alone->zero_grad();
      at::mse_loss(head->forward(plain->forward(batch.x)), batch.y).backward();
      head->zero_grad();
      shard_layers(head, mesh);
      at::Tensor out = head->forward(net->forward(mine.x));
      head = nullptr;
      at::mse_loss(out, mine.y).backward();
      out.reset();
      EXPECT_EQ(gradients_differ(*net, *plain), "") << "step " << step;
      optimizer->step();
      alone->step();
      EXPECT_EQ(gathered_memory(mesh).bytes, 0);
    }
    EXPECT_EQ(parameters_differ(*net, *plain), "");
  });
}

/// Modules may be destroyed after their world has ended; use of them is an error.
TEST(FullyShardLifetimes, AModuleMayOutliveItsWorld) {
  std::vector<torch::nn::Sequential> kept(2, nullptr);
  std::vector<at::Tensor> losses(2);
  run_ranks(2, [&](int rank) {
    auto [mesh, batch, mine, plain, net, alone, optimizer] = make_twins(rank, 2, {});
    train(forward_of(net), *optimizer, mine, 2);
    losses[static_cast<size_t>(rank)] = at::mse_loss(net->forward(mine.x), mine.y);
    kept[static_cast<size_t>(rank)] = net;
  });
  EXPECT_EQ(to_local(kept[0]->parameters()[0]).size(1), kWidths.front());
  EXPECT_ANY_THROW(kept[0]->forward(make_batch(4, kWidths.front(), kWidths.back()).x));
  kept.clear();
  losses.clear();
}

/// Parameters and their group may outlive the module; a module with its address is another one.
TEST(FullyShardLifetimes, AModuleAtTheAddressOfOneThatIsGoneIsAnother) {
  run_ranks(2, [](int) {
    const DeviceMesh mesh = init_device_mesh("dp=2");
    const at::Tensor shared = at::ones({4}).requires_grad_();
    for (int i = 0; i < 40; ++i) {
      const auto module = std::make_shared<torch::nn::Module>();
      module->register_parameter("shared", shared);
      const at::Tensor own = module->register_parameter("own", at::ones({4}));
      fully_shard(*module, mesh);
      EXPECT_TRUE(is_dtensor(own));
      EXPECT_THROW(fully_shard(*module, mesh), InvalidArgument);
    }
    // Nor is one that no shared_ptr owns known by its address.
    for (int i = 0; i < 3; ++i) {
      torch::nn::Module module;
      module.register_parameter("shared", shared);
      const at::Tensor own = module.register_parameter("own", at::ones({4}));
      fully_shard(module, mesh);
      EXPECT_TRUE(is_dtensor(own));
    }
  });
}

}  // namespace lifetimes_test
}  // namespace tessera::test
