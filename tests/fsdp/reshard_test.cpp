// What stays after forward: nothing, everything, or the part of a smaller group.
#include <gtest/gtest.h>

#include "tessera/base/errors.h"
#include "tests/fsdp/training.h"

namespace tessera::test {
namespace reshard_test {

TEST(FullyShardReshard, ToASmallerGroupTrainsAsOneRank) {
  trains_as_one_rank(mlp_subject(), adamw(), {"dp=4", "dp=2,fs=4"},
                     by_parts({.reshard_after_forward = 2}));
  trains_as_one_rank(gpt_subject(), sgd(), {"dp=4"},
                     by_parts({.reshard_after_forward = 2, .merge_bytes = 0}));
  trains_as_one_rank(mlp_subject({64, 96, 66, 70}), sgd(), {"dp=6"},
                     by_parts({.reshard_after_forward = 3, .merge_bytes = 0}));
}

/// Forward gathers over all four ranks, backward over two; between them each rank holds a half.
TEST(FullyShardReshard, BackwardGathersAmongFewer) {
  run_ranks(4, [](int rank) {
    const DeviceMesh mesh = init_device_mesh("dp=4");
    const Batch mine = make_batch(8, 64, 64).part(rank, 4);
    auto net = make_mlp({64, 80, 80, 64});  // weights lie in place, biases are copied out
    shard_layers(net, mesh, {.reshard_after_forward = 2, .merge_bytes = 0});
    Recorder recorder(*comm::current_world());
    const auto gathers_over = [&](int ranks) {
      int count = 0;
      for (const auto& event : recorder.events()) {
        if (event.op != CommOp::all_gather) continue;
        count += static_cast<int>(event.group->ranks.size()) == ranks ? 1 : 0;
      }
      return count;
    };
    const int64_t element = 8;
    const int64_t half = (80 * 64 + 80 + 80 * 80 + 80 + 64 * 80 + 64) * element / 2;
    for (int step = 0; step < 3; ++step) {
      recorder.clear();
      const at::Tensor x = mine.x.clone().requires_grad_();
      const at::Tensor loss = at::mse_loss(net->forward(x), mine.y);
      EXPECT_EQ(gathers_over(4), 3) << recorder.to_text();
      if (step == 0) {  // the last group is still whole, and nothing is prefetched
        int64_t whole = 0;
        for (const auto& group : sharded_groups(*net)) whole = group.gathered_bytes;
        EXPECT_GE(gathered_memory(mesh).bytes, whole);
        EXPECT_LE(gathered_memory(mesh).bytes, half + whole);
      }
      loss.backward();
      EXPECT_EQ(gathers_over(4), 3) << recorder.to_text();
      EXPECT_EQ(gathers_over(2), 2) << recorder.to_text();
      EXPECT_EQ(gathered_memory(mesh).bytes, 0);
    }
    const torch::NoGradGuard no_grad;  // nothing stays where no backward follows
    net->forward(mine.x);
    reshard(*net);
    EXPECT_EQ(gathered_memory(mesh).bytes, 0);
  });
}

/// What stays is not used once the shards changed.
TEST(FullyShardReshard, WritesToShardsAreSeen) {
  run_ranks(4, [](int) {
    const DeviceMesh mesh = init_device_mesh("dp=4");
    auto net = make_mlp({4, 4, 4});
    shard_layers(net, mesh, {.reshard_after_forward = 2, .merge_bytes = 0});
    const at::Tensor x = at::ones({1, 4}, at::kDouble);
    for (int pass = 0; pass < 2; ++pass) net->forward(x);
    const torch::NoGradGuard no_grad;
    for (const at::Tensor& parameter : net->parameters()) parameter.fill_(0);
    EXPECT_TRUE(at::equal(net->forward(x), at::zeros({1, 4}, at::kDouble)));
  });
}

TEST(FullyShardReshard, OneRankIsAllAndAllRanksAreNone) {
  run_ranks(4, [](int rank) {
    for (const int ranks : {1, 4}) {
      Twins twins = make_twins(rank, 4, {.reshard_after_forward = ranks, .merge_bytes = 0});
      Recorder recorder(*comm::current_world());
      at::mse_loss(twins.net->forward(twins.mine.x), twins.mine.y).backward();
      EXPECT_EQ(recorder.count(CommOp::all_gather), ranks == 1 ? 3 : 4);
    }
    const DeviceMesh mesh = init_device_mesh("dp=4");
    auto net = make_mlp(kWidths);
    EXPECT_THROW(fully_shard(*net, mesh, {.reshard_after_forward = 3}), InvalidArgument);
    EXPECT_THROW(fully_shard(*net, mesh, {.reshard_after_forward = 0}), InvalidArgument);
    EXPECT_THROW(fully_shard(*net, mesh, {.reshard_after_forward = 8}), InvalidArgument);
  });
}

}  // namespace reshard_test
}  // namespace tessera::test
