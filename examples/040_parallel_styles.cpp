// Trains a Llama in plain torch::nn (examples/blocks/llama.h), split over two ranks by a plan
// alone: first with whole activations, then with activations that are sharded over the sequence
// between the blocks. Losses are those of one rank, and the messages of a step are listed.
#include <tessera/tessera.h>
#include <torch/nn/functional/loss.h>
#include <torch/optim/adamw.h>

#include <cmath>
#include <iostream>
#include <stdexcept>

#include "examples/blocks/llama.h"

using namespace tessera;

constexpr int64_t kPlaces = 8;
const blocks::LlamaSizes kSizes = {
    .width = 32, .heads = 8, .kv_heads = 4, .hidden = 44, .vocabulary = 40, .layers = 2};

ParallelPlan plan_for(bool by_sequence) {
  const Placement between = by_sequence ? Shard(1) : Replicate();
  const auto sums = RowwiseParallel({.output_layout = between});
  ParallelPlan out = {
      {"embedding", sums},  // the vocabulary
      {"layers.*.attention.wq", ColwiseParallel({.heads = kSizes.heads})},
      {"layers.*.attention.wk", ColwiseParallel({.heads = kSizes.kv_heads})},
      {"layers.*.attention.wv", ColwiseParallel({.heads = kSizes.kv_heads})},
      {"layers.*.attention.wo", sums},
      {"layers.*.mlp.gate", ColwiseParallel()},
      {"layers.*.mlp.up", ColwiseParallel()},
      {"layers.*.mlp.down", sums},
      {"head", ColwiseParallel()},  // the loss is computed on each rank's words
  };
  if (by_sequence) {
    out.emplace_back("layers.*.*_norm", SequenceParallel());
    out.emplace_back("norm", SequenceParallel());
  }
  return out;
}

std::vector<float> train(const std::string& mesh_text, bool by_sequence, bool report) {
  const DeviceMesh mesh = init_device_mesh(mesh_text);
  tessera::manual_seed(7);  // in every rank
  blocks::Llama model(kSizes);
  parallelize_module(*model, mesh, plan_for(by_sequence));
  torch::optim::AdamW optimizer(model->parameters(), torch::optim::AdamWOptions(0.01));

  const at::Tensor angles = at::arange(kPlaces).unsqueeze(1) *
                            at::arange(kSizes.width / kSizes.heads).add(1).reciprocal();
  const auto on_all = [&](const at::Tensor& x) {
    return distribute_tensor(x, mesh, {Replicate()}, {.source = std::nullopt});
  };
  const at::Tensor cos = on_all(angles.cos()), sin = on_all(angles.sin());
  const at::Tensor text = at::arange(4 * (kPlaces + 1)).reshape({4, kPlaces + 1}).remainder(37);
  const at::Tensor tokens = on_all(text.slice(1, 0, kPlaces).contiguous());
  const at::Tensor next = on_all(text.slice(1, 1).contiguous());

  std::vector<float> losses;
  comm::Recorder recorder(*comm::current_world());
  for (int step = 0; step < 10; ++step) {
    optimizer.zero_grad();
    const at::Tensor logits = model->forward(tokens, cos, sin);
    const at::Tensor loss =
        torch::nn::functional::cross_entropy(logits.flatten(0, 1), next.flatten());
    loss.backward();
    if (report && step == 0) std::cout << "one step of rank 0:\n" << recorder.to_text() << "\n";
    optimizer.step();
    losses.push_back(loss.item<float>());
  }
  return losses;
}

int main() {
  std::vector<float> alone;
  run_ranks(1, [&](int) { alone = train("tp=1", false, false); });
  for (const bool by_sequence : {false, true}) {
    std::vector<float> together;
    run_ranks(2, [&](int rank) {
      const auto losses = train("tp=2", by_sequence, rank == 0);
      if (rank == 0) together = losses;
    });
    for (size_t step = 0; step < alone.size(); ++step) {
      if (std::abs(alone[step] - together[step]) > 1e-4F) throw std::runtime_error("they differ");
    }
    std::cout << (by_sequence ? "sharded over the sequence" : "whole") << ": loss "
              << together.front() << " -> " << together.back() << ", as on one rank\n";
  }
}
