// A whole Llama by a plan: the embedding by vocabulary, the blocks, the output head, and the loss
// on logits that stay sharded over the vocabulary.
#include <ATen/ops/cross_entropy_loss.h>

#include <algorithm>

#include "tests/parallel/parallel_cases.h"
#include "tests/support/processes.h"

namespace tessera::test {
namespace language_model_test {

constexpr int64_t kWords = 50, kLayers = 2;

ParallelPlan plan_for(bool by_sequence) {
  const auto sums = RowwiseParallel({.output_layout = by_sequence ? Shard(1) : Replicate()});
  ParallelPlan plan = {
      {"embedding", sums},
      {"layers.*.attention.w[qkv]", ColwiseParallel({.heads = kHeads})},
      {"layers.*.attention.wo", sums},
      {"layers.*.mlp.gate", ColwiseParallel()},
      {"layers.*.mlp.up", ColwiseParallel()},
      {"layers.*.mlp.down", sums},
      {"head", ColwiseParallel()},
  };
  if (by_sequence) {
    plan.emplace_back("layers.*.*_norm", SequenceParallel());
    plan.emplace_back("norm", SequenceParallel());
  }
  return plan;
}

struct Batch {
  at::Tensor angles = test_numbers({kPlaces, kWidth / kHeads}, 77);
  at::Tensor cos = at::cos(angles), sin = at::sin(angles);
  at::Tensor tokens = test_numbers({kBatch, kPlaces}, 3, kWords).to(at::kLong);
  at::Tensor next = test_numbers({kBatch, kPlaces}, 4, kWords).to(at::kLong);
};

blocks::Llama make() {
  blocks::Llama net(blocks::LlamaSizes{kWidth, kHeads, kHeads, kHidden, kWords, kLayers});
  set_parameters(*net, 9);
  return net;
}

/// The loss and gradients of the first step, and the loss and parameters after ten.
RunResults train_words(blocks::Llama net, const Batch& batch) {
  RunResults out;
  torch::optim::SGD optimizer(net->parameters(), 0.05);
  for (int step = 0; step < 10; ++step) {
    optimizer.zero_grad();
    const at::Tensor logits = net(batch.tokens, batch.cos, batch.sin);
    const at::Tensor loss = at::cross_entropy_loss(logits.flatten(0, 1), batch.next.flatten());
    loss.backward();
    if (step == 0 || step == 9) out.emplace("loss " + std::to_string(step), whole(loss));
    for (const auto& item : net->named_parameters()) {
      if (step == 0) out.emplace("gradient of " + item.key(), whole(item.value().grad()));
    }
    optimizer.step();
  }
  for (const auto& item : net->named_parameters()) out.emplace(item.key(), whole(item.value()));
  return out;
}

/// A step sends activations and numbers of rows, and never logits.
void check_messages(blocks::Llama& net, const Batch& batch, bool by_sequence) {
  comm::Recorder recorder(*comm::current_world());
  const at::Tensor logits = net(batch.tokens, batch.cos, batch.sin);
  const std::string sums = std::to_string(2 * kLayers + 1);  // those of the embedding too
  EXPECT_EQ(comm::expect_comm(recorder, by_sequence ? sums + " all_gather on tp, " + sums +
                                                          " reduce_scatter on tp"
                                                    : sums + " all_reduce on tp"),
            "");
  EXPECT_EQ(placements(logits)[0], Shard(2));
  recorder.clear();
  const at::Tensor loss = at::cross_entropy_loss(logits.flatten(0, 1), batch.next.flatten());
  EXPECT_EQ(comm::expect_comm(recorder, "3 all_reduce on tp"), "");
  for (const auto& event : recorder.events()) {
    EXPECT_LE(event.bytes(), kBatch * kPlaces * 8) << recorder.to_text();
  }
  loss.backward();
  for (const auto& item : net->named_parameters()) item.value().mutable_grad().reset();
}

void check_on_rank(int ranks, bool by_sequence, const RunResults& expected) {
  const DeviceMesh mesh = comm::init_device_mesh("tp=" + std::to_string(ranks));
  Batch batch;
  for (at::Tensor* tensor : {&batch.cos, &batch.sin, &batch.tokens, &batch.next}) {
    *tensor = distribute_tensor(*tensor, mesh, {Replicate()}, {.source = std::nullopt});
  }
  blocks::Llama net = make();
  parallelize_module(*net, mesh, plan_for(by_sequence));
  check_messages(net, batch, by_sequence);
  expect_same(train_words(net, batch), expected);
}

TEST(LanguageModel, ALlamaTrainsAsOnOneRankWithoutGatheringLogits) {
  const RunResults expected = train_words(make(), Batch{});
  for (const int ranks : {2, 3, 4}) {
    for (const bool by_sequence : {false, true}) {
      SCOPED_TRACE(std::to_string(ranks) + (by_sequence ? " ranks by sequence" : " ranks"));
      test::run_ranks(ranks, [&](int) { check_on_rank(ranks, by_sequence, expected); });
    }
  }
}

const testing::Scenario kOnTwo("a language model on two", [] {
  const RunResults expected = train_words(make(), Batch{});
  for (const bool by_sequence : {false, true}) check_on_rank(2, by_sequence, expected);
});

TEST(LanguageModel, OnProcessesToo) {
  EXPECT_EQ(testing::failures(testing::run_processes(kOnTwo, {.size = 2})), "");
}

}  // namespace language_model_test
}  // namespace tessera::test
