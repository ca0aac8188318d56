#include "tessera/fsdp/fully_shard.h"

#include <gtest/gtest.h>
#include <torch/nn/utils/clip_grad.h>

#include "tessera/base/errors.h"
#include "tessera/comm/recorder.h"
#include "tessera/comm/threads.h"
#include "tests/fsdp/models.h"

namespace tessera {
namespace {

using comm::CommOp;
using comm::init_device_mesh;
using comm::Recorder;
using comm::run_ranks;
using test::adamw;
using test::Batch;
using test::layers_of;
using test::make_batch;
using test::make_mlp;
using test::MakeOptimizer;
using test::parameters_differ;
using test::sgd;
using test::train;

std::string mesh_text(int ranks) { return "dp=" + std::to_string(ranks); }

/// Each linear layer a group, and the rest of the module one, if there is a rest.
void shard_layers(torch::nn::Sequential& net, const DeviceMesh& mesh) {
  for (auto* layer : layers_of(net)) fully_shard(*layer, mesh);
  fully_shard(*net, mesh);
}

/// Ten steps on `ranks` ranks, each with its part of the batch, end where one rank with the whole
/// batch ends.
void trains_as_one_rank(int ranks, const std::vector<int64_t>& widths, const MakeOptimizer& make) {
  const Batch batch = make_batch(12, widths.front(), widths.back());
  run_ranks(ranks, [&](int rank) {
    const DeviceMesh mesh = init_device_mesh(mesh_text(ranks));
    auto plain = make_mlp(widths);
    auto alone = make(plain->parameters());
    train([&](const at::Tensor& x) { return plain->forward(x); }, *alone, batch, 10);

    auto net = make_mlp(widths);
    auto optimizer = make(net->parameters());  // made before: it holds the same tensors
    shard_layers(net, mesh);
    train([&](const at::Tensor& x) { return net->forward(x); }, *optimizer, batch.part(rank, ranks),
          10);
    EXPECT_EQ(parameters_differ(*net, *plain), "") << ranks << " ranks";
    EXPECT_EQ(gathered_memory(mesh).bytes, 0);
  });
}

TEST(FullyShard, TrainsAsOneRankWithSgd) {
  for (const int ranks : {1, 2, 3, 4}) trains_as_one_rank(ranks, {6, 10, 7, 3}, sgd());
}

TEST(FullyShard, TrainsAsOneRankWithAdamW) {
  for (const int ranks : {2, 3, 4}) trains_as_one_rank(ranks, {6, 10, 7, 3}, adamw());
}

/// Parameters large enough to be gathered where they lie, in even and uneven parts.
TEST(FullyShard, TrainsAsOneRankWithLargeLayers) {
  for (const int ranks : {2, 3}) trains_as_one_rank(ranks, {64, 96, 65, 70}, sgd());
}

TEST(FullyShard, ParametersAreShardedInPlace) {
  run_ranks(2, [](int rank) {
    const DeviceMesh mesh = init_device_mesh("dp=2");
    auto net = make_mlp({4, 5, 2});
    const at::Tensor weight = layers_of(net)[0]->weight;  // another handle
    const at::Tensor before = weight.detach().clone();
    fully_shard(*net, mesh);
    EXPECT_EQ(sharding(weight).to_text(), "dp=2 : S0 : 5x4 f64");
    EXPECT_TRUE(weight.is_leaf() && weight.requires_grad());
    EXPECT_TRUE(
        at::equal(to_local(weight.detach()), before.narrow(0, rank * 3, rank == 0 ? 3 : 2)));
    EXPECT_TRUE(at::equal(full_tensor(weight.detach()), before));
  });
}

TEST(FullyShard, OutputsAreThePlainOnesAndGradientsAreSharded) {
  run_ranks(2, [](int rank) {
    const DeviceMesh mesh = init_device_mesh("dp=2");
    const Batch batch = make_batch(4, 4, 2);
    auto plain = make_mlp({4, 5, 2});
    auto net = make_mlp({4, 5, 2});
    shard_layers(net, mesh);
    const at::Tensor out = net->forward(batch.x);
    EXPECT_FALSE(is_dtensor(out));
    EXPECT_TRUE(at::equal(out.detach(), plain->forward(batch.x).detach()));
    at::mse_loss(plain->forward(batch.x), batch.y).backward();
    const Batch mine = batch.part(rank, 2);
    at::mse_loss(net->forward(mine.x), mine.y).backward();
    for (const auto& item : net->named_parameters()) {
      const at::Tensor grad = item.value().grad();
      EXPECT_EQ(sharding(grad), sharding(item.value())) << item.key();
      EXPECT_TRUE(at::allclose(full_tensor(grad), plain->named_parameters()[item.key()].grad(),
                               1e-12, 1e-12))
          << item.key();
    }
  });
}

/// The collectives of steps of three layers: one gather each in forward; in backward the last group
/// is still there, and the first is needed only if its input has a gradient.
void counts_collectives(bool input_gradient) {
  run_ranks(2, [&](int rank) {
    const DeviceMesh mesh = init_device_mesh("dp=2");
    const Batch mine = make_batch(4, 6, 4).part(rank, 2);
    auto net = make_mlp({6, 80, 70, 4});
    shard_layers(net, mesh);
    Recorder recorder(*comm::current_world());
    for (int step = 0; step < 4; ++step) {
      recorder.clear();
      const at::Tensor x = mine.x.clone().requires_grad_(input_gradient);
      const at::Tensor out = net->forward(x);
      // From the second step on, backward's first gather begins before forward ends.
      EXPECT_EQ(recorder.count(CommOp::all_gather), step == 0 ? 3 : 4) << recorder.to_text();
      at::mse_loss(out, mine.y).backward();
      EXPECT_EQ(recorder.count(CommOp::all_gather), input_gradient ? 5 : 4) << recorder.to_text();
      EXPECT_EQ(recorder.count(CommOp::reduce_scatter), 3);
      EXPECT_EQ(recorder.count(), input_gradient ? 8 : 7);
      EXPECT_EQ(recorder.count_implicit(), 0);
    }
  });
}

TEST(FullyShard, GathersEachGroupOnceInForwardAndOnceInBackward) {
  counts_collectives(/*input_gradient=*/true);
}

TEST(FullyShard, DoesNotGatherInBackwardWhatBackwardDoesNotNeed) {
  counts_collectives(/*input_gradient=*/false);
}

TEST(FullyShard, HoldsAtMostTwoGroupsAndNothingAfterBackward) {
  run_ranks(3, [](int rank) {
    const DeviceMesh mesh = init_device_mesh("dp=3");
    const Batch mine = make_batch(6, 64, 64).part(rank, 3);
    auto net = make_mlp({64, 70, 80, 90, 80, 64});
    shard_layers(net, mesh);
    std::vector<int64_t> sizes;
    for (const auto& group : sharded_groups(*net)) sizes.push_back(group.gathered_bytes);
    EXPECT_EQ(sizes.size(), 5u);
    std::ranges::sort(sizes, std::greater());
    auto optimizer = adamw()(net->parameters());
    for (int step = 0; step < 4; ++step) {
      reset_peak_gathered_memory(mesh);
      train([&](const at::Tensor& x) { return net->forward(x); }, *optimizer, mine, 1);
      const GatheredMemory memory = gathered_memory(mesh);
      EXPECT_GE(memory.peak_bytes, sizes[0]);
      EXPECT_LE(memory.peak_bytes, sizes[0] + sizes[1]) << "step " << step;
      EXPECT_EQ(memory.bytes, 0);
      for (const auto& group : sharded_groups(*net)) EXPECT_FALSE(group.gathered);
    }
  });
}

/// From the second step on, the next group is on its way while one is used.
TEST(FullyShard, PrefetchesInTheOrderOfThePreviousStep) {
  run_ranks(2, [](int rank) {
    const DeviceMesh mesh = init_device_mesh("dp=2");
    const Batch mine = make_batch(4, 6, 4).part(rank, 2);
    auto net = make_mlp({6, 8, 7, 9, 4});
    shard_layers(net, mesh);
    auto optimizer = sgd()(net->parameters());
    Recorder recorder(*comm::current_world());
    const auto asynchronous_gathers = [&] {
      recorder.clear();
      train([&](const at::Tensor& x) { return net->forward(x); }, *optimizer, mine, 1);
      int count = 0;
      for (const auto& event : recorder.events()) {
        count += event.op == CommOp::all_gather && event.async ? 1 : 0;
      }
      return count;
    };
    EXPECT_EQ(asynchronous_gathers(), 0);
    // Four layers: all but the first of forward, and in backward the second and third.
    EXPECT_EQ(asynchronous_gathers(), 5);
    EXPECT_EQ(asynchronous_gathers(), 5);
  });
}

TEST(FullyShard, ClipsGradientsByTheirGlobalNorm) {
  run_ranks(3, [](int rank) {
    const DeviceMesh mesh = init_device_mesh("dp=3");
    const Batch batch = make_batch(6, 6, 4);
    auto plain = make_mlp({6, 8, 4});
    at::mse_loss(plain->forward(batch.x), batch.y).backward();
    const double want = torch::nn::utils::clip_grad_norm_(plain->parameters(), 0.05);
    auto net = make_mlp({6, 8, 4});
    shard_layers(net, mesh);
    const Batch mine = batch.part(rank, 3);
    at::mse_loss(net->forward(mine.x), mine.y).backward();
    EXPECT_NEAR(torch::nn::utils::clip_grad_norm_(net->parameters(), 0.05), want, 1e-12);
    for (const auto& item : net->named_parameters()) {
      EXPECT_TRUE(at::allclose(full_tensor(item.value().grad()),
                               plain->named_parameters()[item.key()].grad(), 1e-10, 1e-12));
    }
  });
}

/// Without gradients too, and the values are those after the optimizer's step.
TEST(FullyShard, EvaluatesWithoutGradientsBetweenSteps) {
  run_ranks(2, [](int rank) {
    const DeviceMesh mesh = init_device_mesh("dp=2");
    const Batch batch = make_batch(4, 6, 4);
    auto plain = make_mlp({6, 8, 4});
    auto net = make_mlp({6, 8, 4});
    shard_layers(net, mesh);
    auto alone = sgd()(plain->parameters());
    auto optimizer = sgd()(net->parameters());
    for (int step = 0; step < 3; ++step) {
      train([&](const at::Tensor& x) { return plain->forward(x); }, *alone, batch, 1);
      train([&](const at::Tensor& x) { return net->forward(x); }, *optimizer, batch.part(rank, 2),
            1);
      const torch::NoGradGuard no_grad;
      for (int pass = 0; pass < 2; ++pass) {
        EXPECT_TRUE(at::allclose(net->forward(batch.x), plain->forward(batch.x), 1e-10, 1e-10));
      }
    }
  });
}

TEST(FullyShard, RefusesWhatItCannotHold) {
  run_ranks(2, [](int) {
    const DeviceMesh mesh = init_device_mesh("dp=2");
    auto net = make_mlp({4, 5, 2});
    fully_shard(*net, mesh);
    EXPECT_THROW(fully_shard(*net, mesh), InvalidArgument);

    auto transposed = torch::nn::Linear(3, 4);
    transposed->weight.set_data(at::ones({3, 4}).t());
    EXPECT_THROW(fully_shard(*transposed, mesh), InvalidArgument);
    EXPECT_FALSE(is_dtensor(transposed->bias));

    auto with_gradient = make_mlp({4, 2});
    with_gradient->forward(at::ones({1, 4}, at::kDouble)).sum().backward();
    EXPECT_THROW(fully_shard(*with_gradient, mesh), InvalidArgument);
    EXPECT_THROW(fully_shard(*make_mlp({4, 2}), DeviceMesh::parse("dp=2")), InvalidArgument);
  });
}

}  // namespace
}  // namespace tessera
