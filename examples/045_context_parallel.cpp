// Trains a causal transformer layer whose sequence is sharded over four ranks. The model is plain
// libtorch and calls scaled_dot_product_attention; inside a ContextParallel scope that call passes
// keys and values around the ranks. The sequence is laid out in head-tail order, so that every rank
// computes the same share of the causal triangle. The losses are those of one rank.
#include <tessera/tessera.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/normalization.h>
#include <torch/optim/adamw.h>

#include <cmath>
#include <iostream>
#include <stdexcept>

using namespace tessera;

constexpr int64_t kBatch = 2;
constexpr int64_t kLength = 48;
constexpr int64_t kWidth = 32;
constexpr int64_t kHeads = 4;

/// B x S x width -> B x heads x S x width of a head.
at::Tensor by_head(const at::Tensor& x) {
  return x.view({x.size(0), x.size(1), kHeads, kWidth / kHeads}).transpose(1, 2);
}

struct Layer : torch::nn::Module {
  Layer() {
    register_module("norm", norm);
    register_module("query", query);
    register_module("key", key);
    register_module("value", value);
    register_module("out", out);
  }
  at::Tensor forward(const at::Tensor& x) {
    const at::Tensor y = norm(x);
    const at::Tensor a = at::scaled_dot_product_attention(
        by_head(query(y)), by_head(key(y)), by_head(value(y)), {}, 0.0, /*is_causal=*/true);
    return x + out(a.transpose(1, 2).reshape(x.sizes()));
  }

  torch::nn::LayerNorm norm{torch::nn::LayerNormOptions({kWidth})};
  torch::nn::Linear query{kWidth, kWidth}, key{kWidth, kWidth}, value{kWidth, kWidth};
  torch::nn::Linear out{kWidth, kWidth};
};

std::vector<double> train(const std::string& mesh_text, ContextMethod method, bool report) {
  const DeviceMesh mesh = init_device_mesh(mesh_text);
  tessera::manual_seed(7);
  const auto options = at::TensorOptions(at::kDouble);
  const at::Tensor inputs = torch::randn({kBatch, kLength, kWidth}, options);
  const at::Tensor targets = inputs.cumsum(1).tanh();  // what came before matters

  auto model = std::make_shared<Layer>();
  model->to(at::kDouble);
  distribute_module(*model, mesh);  // replicated
  reduce_gradients(*model);
  torch::optim::AdamW optimizer(model->parameters(), torch::optim::AdamWOptions(0.01));

  const auto order = SequenceOrder::head_tail(kLength, mesh.size());
  const auto sharded = [&](const at::Tensor& t) {
    return distribute_tensor(reorder_sequence(t, 1, order), mesh, {Shard(1)});
  };
  const at::Tensor x = sharded(inputs), y = sharded(targets);
  const ContextParallel scope(mesh.axis_name(0), {.method = method, .order = order});
  std::vector<double> losses;
  comm::Recorder recorder(*comm::current_world());
  for (int step = 0; step < 10; ++step) {
    optimizer.zero_grad();
    const at::Tensor loss = (model->forward(x) - y).pow(2).sum() / inputs.numel();
    loss.backward();
    optimizer.step();
    losses.push_back(loss.item<double>());
    if (report && step == 0) std::cout << "one step of rank 0:\n" << recorder.to_text() << "\n";
  }
  return losses;
}

int main() {
  std::vector<double> alone;
  run_ranks(1, [&](int) { alone = train("cp=1", ContextMethod::ring, false); });
  for (const auto method : {ContextMethod::ring, ContextMethod::all_to_all}) {
    std::vector<double> together;
    run_ranks(4, [&](int rank) {
      const auto losses = train("cp=4", method, rank == 0);
      if (rank == 0) together = losses;
    });
    for (size_t step = 0; step < alone.size(); ++step) {
      std::cout << context_method_name(method) << ", step " << step << ": loss " << alone[step]
                << " on one rank, " << together[step] << " on four\n";
      if (std::abs(alone[step] - together[step]) > 1e-9) throw std::runtime_error("they differ");
    }
  }
}
