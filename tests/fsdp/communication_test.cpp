// What a step sends, and when.
#include <gtest/gtest.h>

#include "tests/fsdp/training.h"

namespace tessera::test {
namespace communication_test {

/// The collectives of steps of three layers: one gather each in forward; in backward the last group
/// is still there, and the first is needed only if its input has a gradient.
void counts_collectives(bool input_gradient) {
  run_ranks(2, [&](int rank) {
    const DeviceMesh mesh = init_device_mesh("dp=2");
    const Batch mine = make_batch(4, 6, 4).part(rank, 2);
    auto net = make_mlp({6, 80, 70, 4});
    shard_layers(net, mesh, kUnmerged);
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

TEST(FullyShardCommunication, GathersEachGroupOnceInForwardAndOnceInBackward) {
  counts_collectives(/*input_gradient=*/true);
}

TEST(FullyShardCommunication, DoesNotGatherInBackwardWhatBackwardDoesNotNeed) {
  counts_collectives(/*input_gradient=*/false);
}

/// Blocks or experts, and the rest of the model, which stays from its first use to its last.
void counts_collectives_of(const Subject& subject, int gathers, int reductions) {
  run_ranks(2, [&](int rank) {
    const DeviceMesh mesh = init_device_mesh("dp=2");
    Model model = subject.make();
    by_parts(kUnmerged)(model, mesh);
    auto optimizer = adamw()(model.module->parameters());
    Recorder recorder(*comm::current_world());
    for (int step = 0; step < 3; ++step) {
      recorder.clear();
      train_model(model, *optimizer, subject.batch.part(rank, 2), 1);
      EXPECT_EQ(recorder.count(CommOp::all_gather), gathers) << recorder.to_text();
      EXPECT_EQ(recorder.count(CommOp::reduce_scatter), reductions) << recorder.to_text();
      EXPECT_EQ(recorder.count(), gathers + reductions);
    }
  });
}

TEST(FullyShardCommunication, OfAGpt) {
  counts_collectives_of(gpt_subject(), /*gathers=*/1 + 2 + 2, /*reductions=*/1 + 2);
}

/// The last expert is still there when backward begins.
TEST(FullyShardCommunication, OfAMixtureOfExperts) {
  counts_collectives_of(moe_subject(), /*gathers=*/1 + 4 + 3, /*reductions=*/1 + 4);
}

/// From the second step on, the next group is on its way while one is used.
TEST(FullyShardCommunication, PrefetchesInTheOrderOfThePreviousStep) {
  run_ranks(2, [](int rank) {
    const DeviceMesh mesh = init_device_mesh("dp=2");
    const Batch mine = make_batch(4, 6, 4).part(rank, 2);
    auto net = make_mlp({6, 8, 7, 9, 4});
    shard_layers(net, mesh, kUnmerged);
    auto optimizer = sgd()(net->parameters());
    Recorder recorder(*comm::current_world());
    const auto asynchronous_gathers = [&] {
      recorder.clear();
      train(forward_of(net), *optimizer, mine, 1);
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

/// Three steps of training and passes of evaluation in turns: each is known when it comes again, so
/// that nothing is gathered for the other kind, or resharded too early.
TEST(FullyShardCommunication, EvaluationIsNotTakenForTraining) {
  for (const int passes : {1, 2}) {
    run_ranks(2, [&](int rank) {
      auto [mesh, batch, mine, plain, net, alone, optimizer] = make_twins(rank, 2, kUnmerged);
      Recorder recorder(*comm::current_world());
      for (int round = 0; round < 4; ++round) {
        recorder.clear();
        train(forward_of(net), *optimizer, mine, 3);
        for (int pass = 0; pass < passes; ++pass) {
          const torch::NoGradGuard no_grad;
          net->forward(mine.x);
        }
        if (round < 2) continue;
        EXPECT_EQ(recorder.count(CommOp::all_gather), 3 * 4 + passes * 3) << recorder.to_text();
      }
    });
  }
}

/// A step that leaves the known order after the second of four layers: the third, which was on its
/// way, makes room.
TEST(FullyShardCommunication, AWrongPrefetchIsDropped) {
  run_ranks(2, [](int rank) {
    const DeviceMesh mesh = init_device_mesh("dp=2");
    const Batch mine = make_batch(4, 64, 64).part(rank, 2);
    auto net = make_mlp({64, 64, 64, 64, 64, 64});
    shard_layers(net, mesh, kUnmerged);
    const auto layers = layers_of(net);
    const auto step = [&](const std::vector<size_t>& order) {
      at::Tensor x = mine.x;
      for (const size_t i : order) x = at::tanh(layers[i]->forward(x));
      at::mse_loss(x, mine.y).backward();
    };
    const int64_t group = sharded_groups(*net)[0].gathered_bytes;
    for (int round = 0; round < 3; ++round) {
      reset_peak_gathered_memory(mesh);
      step({0, 1, 2, 3});
      step({0, 1, 4, 3});
      EXPECT_LE(gathered_memory(mesh).peak_bytes, 2 * group) << "round " << round;
    }
  });
}

/// The gather of the next group begins before a layer has computed, and is waited for after it.
TEST(FullyShardCommunication, GathersRunUnderComputation) {
  run_ranks(2, [](int rank) {
    const DeviceMesh mesh = init_device_mesh("dp=2");
    const Batch mine = make_batch(4, 64, 64).part(rank, 2);
    auto net = make_mlp({64, 80, 70, 90, 64});
    shard_layers(net, mesh, kUnmerged);
    const auto layers = layers_of(net);
    auto optimizer = sgd()(net->parameters());
    train(forward_of(net), *optimizer, mine, 2);  // learns the order
    Recorder recorder(*comm::current_world());
    std::vector<comm::Clock::time_point> computed;  // when each layer was
    at::Tensor x = mine.x;
    for (auto* layer : layers) {
      x = at::tanh(layer->forward(x));
      computed.push_back(comm::Clock::now());
    }
    const auto events = recorder.events();
    ASSERT_GE(events.size(), layers.size());
    for (size_t i = 1; i < layers.size(); ++i) {
      const comm::CommEvent& gather = events[i];
      EXPECT_EQ(gather.op, CommOp::all_gather);
      EXPECT_LT(gather.start, computed[i - 1]) << "layer " << i;
      EXPECT_GT(gather.start + gather.duration, computed[i - 1]) << "layer " << i;
      EXPECT_LT(gather.exposed, gather.duration) << "layer " << i;
    }
    x.sum().backward();
  });
}

TEST(FullyShardCommunication, ReplicasGatherNothingAndReduceOncePerGroup) {
  run_ranks(2, [](int rank) {
    const DeviceMesh mesh = init_device_mesh("dp=2");
    const Batch mine = make_batch(4, 6, 3).part(rank, 2);
    auto net = make_mlp(kWidths);
    replicate(*net, mesh);
    Recorder recorder(*comm::current_world());
    at::mse_loss(net->forward(mine.x), mine.y).backward();
    EXPECT_EQ(recorder.count(CommOp::all_reduce), 1) << recorder.to_text();
    EXPECT_EQ(recorder.count(), 1);
  });
}

TEST(FullyShardCommunication, KeepsParametersBetweenForwardAndBackwardIfToldTo) {
  run_ranks(2, [](int rank) {
    const DeviceMesh mesh = init_device_mesh("dp=2");
    const Batch mine = make_batch(4, 6, 3).part(rank, 2);
    auto net = make_mlp(kWidths);
    shard_layers(net, mesh, {.reshard_after_forward = false, .merge_bytes = 0});
    Recorder recorder(*comm::current_world());
    for (int step = 0; step < 3; ++step) {
      recorder.clear();
      at::mse_loss(net->forward(mine.x), mine.y).backward();
      EXPECT_EQ(recorder.count(CommOp::all_gather), 3) << "step " << step;
      EXPECT_EQ(gathered_memory(mesh).bytes, 0);
    }
  });
}

}  // namespace communication_test
}  // namespace tessera::test
