// Small groups that follow each other in a step share their collectives.
#include "tessera/fsdp/order/merge.h"

#include <gtest/gtest.h>

#include <numeric>
#include <random>

#include "tests/fsdp/training.h"

namespace tessera::test {
namespace merge_test {

using fsdp::merge_neighbours;

using Sizes = std::vector<int64_t>;
using Counts = std::vector<size_t>;

TEST(MergeNeighbours, TakesTheFewestStretchesAndEvensThem) {
  EXPECT_EQ(merge_neighbours(Sizes{}, 10), Counts{});
  EXPECT_EQ(merge_neighbours(Sizes{4}, 10), Counts{1});
  EXPECT_EQ(merge_neighbours(Sizes{3, 3, 3, 3}, 10), (Counts{2, 2}));
  EXPECT_EQ(merge_neighbours(Sizes{3, 3, 3, 3}, 12), Counts{4});
  EXPECT_EQ(merge_neighbours(Sizes{1, 20, 1, 1}, 10), (Counts{1, 1, 2}));
  EXPECT_EQ(merge_neighbours(Sizes{5, 5, 5}, 0), (Counts{1, 1, 1}));
}

/// The fewest stretches of at most `most`, and their smallest largest one, by trying all ways to
/// split.
std::pair<size_t, int64_t> best_of_all(const Sizes& sizes, int64_t most) {
  std::pair<size_t, int64_t> best{sizes.size() + 1, 0};
  for (unsigned bounds = 0; bounds < 1U << (sizes.size() - 1); ++bounds) {
    size_t stretches = 1;
    int64_t sum = 0;
    int64_t largest = 0;  // of those that could be smaller
    bool fits = true;
    size_t count = 0;
    for (size_t i = 0; i < sizes.size(); ++i) {
      if (i > 0 && ((bounds >> (i - 1)) & 1U) != 0) {
        ++stretches;
        sum = 0;
        count = 0;
      }
      sum += sizes[i];
      ++count;
      fits = fits && (sum <= most || count == 1);
      if (sum <= most) largest = std::max(largest, sum);
    }
    if (fits) best = std::min(best, {stretches, largest});
  }
  return best;
}

TEST(MergeNeighbours, IsBestAmongAllWays) {
  const auto seed = std::random_device{}();
  SCOPED_TRACE("seed " + std::to_string(seed));
  std::mt19937 random(seed);
  for (int round = 0; round < 300; ++round) {
    Sizes sizes(1 + random() % 9);
    for (int64_t& size : sizes) size = 1 + static_cast<int64_t>(random() % 12);
    const auto most = static_cast<int64_t>(random() % 30);
    const Counts counts = merge_neighbours(sizes, most);
    ASSERT_EQ(std::accumulate(counts.begin(), counts.end(), size_t{0}), sizes.size());
    int64_t largest = 0;
    auto at = sizes.begin();
    for (const size_t count : counts) {
      const int64_t sum = std::accumulate(at, at + static_cast<long>(count), int64_t{0});
      ASSERT_TRUE(sum <= most || count == 1);
      if (sum <= most) largest = std::max(largest, sum);
      at += static_cast<long>(count);
    }
    ASSERT_EQ(std::pair(counts.size(), largest), best_of_all(sizes, most));
  }
}

/// Six layers of one size, which `merge_bytes` lets go in pairs.
struct Pairs {
  explicit Pairs(const DeviceMesh& mesh) : net(make_mlp({20, 20, 20, 20, 20, 20, 20})) {
    auto probe = make_mlp({20, 20});
    fully_shard(*probe, mesh);
    const int64_t one = sharded_groups(*probe)[0].gathered_bytes;
    for (auto* layer : layers_of(net)) fully_shard(*layer, mesh, {.merge_bytes = 2 * one});
  }
  torch::nn::Sequential net;
};

TEST(FullyShardMerge, OneGatherAPassAndOneReductionForEachMergedGroup) {
  run_ranks(3, [](int rank) {
    const DeviceMesh mesh = init_device_mesh("dp=3");
    const Batch mine = make_batch(6, 20, 20).part(rank, 3);
    Pairs pairs(mesh);
    Recorder recorder(*comm::current_world());
    for (int step = 0; step < 4; ++step) {
      recorder.clear();
      reset_peak_gathered_memory(mesh);
      const at::Tensor x = mine.x.clone().requires_grad_();
      at::mse_loss(pairs.net->forward(x), mine.y).backward();
      // The first step learns the order. Then three in forward, of which the last stays.
      EXPECT_EQ(recorder.count(CommOp::all_gather), step == 0 ? 11 : 5) << recorder.to_text();
      EXPECT_EQ(recorder.count(CommOp::reduce_scatter), step == 0 ? 6 : 3) << recorder.to_text();
      const auto groups = sharded_groups(*pairs.net);
      EXPECT_LE(gathered_memory(mesh).peak_bytes, 2 * groups[0].merged_bytes) << "step " << step;
      EXPECT_EQ(gathered_memory(mesh).bytes, 0);
      for (size_t i = 0; i < groups.size(); ++i) EXPECT_EQ(groups[i].merged, i / 2);
    }
  });
}

TEST(FullyShardMerge, TrainsAsOneRank) {
  for (const int ranks : {2, 3}) {
    const Batch batch = make_batch(12, 20, 20);
    run_ranks(ranks, [&](int rank) {
      const DeviceMesh mesh = init_device_mesh("dp=" + std::to_string(ranks));
      auto plain = make_mlp({20, 20, 20, 20, 20, 20, 20});
      Pairs pairs(mesh);
      auto alone = adamw()(plain->parameters());
      auto optimizer = adamw()(pairs.net->parameters());
      train(forward_of(plain), *alone, batch, 10);
      train(forward_of(pairs.net), *optimizer, batch.part(rank, ranks), 10);
      EXPECT_EQ(parameters_differ(*pairs.net, *plain), "");
    });
  }
}

/// Small and large layers in one merged group; tiny layers travel together by default.
TEST(FullyShardMerge, TheCostModelMergesWhatIsSmall) {
  run_ranks(2, [](int rank) {
    const DeviceMesh mesh = init_device_mesh("dp=2");
    const Batch batch = make_batch(4, 8, 8);
    const std::vector<int64_t> widths = {8, 96, 65, 8, 8};
    auto plain = make_mlp(widths);
    auto net = make_mlp(widths);
    for (auto* layer : layers_of(net)) fully_shard(*layer, mesh);
    auto alone = adamw()(plain->parameters());
    auto optimizer = adamw()(net->parameters());
    train(forward_of(plain), *alone, batch, 5);
    const Forward forward = forward_of(net);
    train(forward, *optimizer, batch.part(rank, 2), 4);
    Recorder recorder(*comm::current_world());
    train(forward, *optimizer, batch.part(rank, 2), 1);
    EXPECT_EQ(recorder.count(CommOp::all_gather), 1) << recorder.to_text();
    EXPECT_EQ(recorder.count(CommOp::reduce_scatter), 1) << recorder.to_text();
    EXPECT_EQ(parameters_differ(*net, *plain), "");
  });
}

TEST(FullyShardMerge, ReplicasReduceTogether) {
  run_ranks(2, [](int rank) {
    const DeviceMesh mesh = init_device_mesh("dp=2");
    const Batch batch = make_batch(4, 8, 8);
    auto plain = make_mlp({8, 70, 66, 8});
    auto net = make_mlp({8, 70, 66, 8});
    for (auto* layer : layers_of(net)) replicate(*layer, mesh);
    auto alone = adamw()(plain->parameters());
    auto optimizer = adamw()(net->parameters());
    train(forward_of(plain), *alone, batch, 3);
    Recorder recorder(*comm::current_world());
    for (int step = 0; step < 3; ++step) {
      recorder.clear();
      train(forward_of(net), *optimizer, batch.part(rank, 2), 1);
      EXPECT_EQ(recorder.count(CommOp::all_reduce), step == 0 ? 3 : 1) << recorder.to_text();
    }
    EXPECT_EQ(parameters_differ(*net, *plain), "");
  });
}

/// Groups that are treated differently do not share; when one is destroyed the others part.
TEST(FullyShardMerge, OnlyGroupsThatAreTreatedAlike) {
  run_ranks(2, [](int rank) {
    const DeviceMesh mesh = init_device_mesh("dp=2");
    const Batch mine = make_batch(4, 8, 8).part(rank, 2);
    auto net = make_mlp({8, 8, 8, 8, 8});
    const auto layers = layers_of(net);
    for (size_t i = 0; i < layers.size(); ++i) {
      fully_shard(*layers[i], mesh, {.reshard_after_forward = i == 0 ? false : true});
    }
    auto last = make_mlp({8, 8});
    fully_shard(*last, mesh);
    const auto step = [&] {
      const at::Tensor h = net->forward(mine.x);
      at::mse_loss(last.is_empty() ? h : last->forward(h), mine.y).backward();
    };
    const auto numbers = [&] {
      Counts out;
      for (const auto& group : sharded_groups(*net)) out.push_back(group.merged);
      return out;
    };
    step();
    EXPECT_EQ(numbers(), (Counts{0, 1, 1, 1}));
    EXPECT_GT(sharded_groups(*last)[0].merged_bytes, sharded_groups(*last)[0].gathered_bytes);
    last = nullptr;
    EXPECT_EQ(gathered_memory(mesh).bytes, 0);
    EXPECT_EQ(numbers(), (Counts{0, 1, 2, 3}));
    step();
    EXPECT_EQ(numbers(), (Counts{0, 1, 1, 1}));
    step();
    EXPECT_EQ(gathered_memory(mesh).bytes, 0);
  });
}

}  // namespace merge_test
}  // namespace tessera::test
