#pragma once

#include <gtest/gtest.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/adamw.h>
#include <torch/optim/sgd.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "tessera/dtensor/dtensor.h"
#include "tests/support/training.h"

/// Small models, and a training loop that a plain and a sharded one go through alike.
namespace tessera::test {

/// Linear layers with tanh between them, float64, the same values on every rank.
inline torch::nn::Sequential make_mlp(const std::vector<int64_t>& widths, uint64_t seed = 1) {
  torch::nn::Sequential net;
  for (size_t i = 0; i + 1 < widths.size(); ++i) {
    if (i > 0) net->push_back(torch::nn::Tanh());
    net->push_back(torch::nn::Linear(widths[i], widths[i + 1]));
  }
  set_parameters(*net, seed);
  return net;
}

inline std::vector<torch::nn::LinearImpl*> layers_of(torch::nn::Sequential& net) {
  std::vector<torch::nn::LinearImpl*> out;
  for (const auto& module : net->modules(/*include_self=*/false)) {
    if (auto* linear = module->as<torch::nn::LinearImpl>()) out.push_back(linear);
  }
  return out;
}

using MakeOptimizer =
    std::function<std::unique_ptr<torch::optim::Optimizer>(const std::vector<at::Tensor>&)>;

inline MakeOptimizer sgd() {
  return [](const std::vector<at::Tensor>& parameters) {
    return std::make_unique<torch::optim::SGD>(
        parameters, torch::optim::SGDOptions(0.1).momentum(0.9).weight_decay(0.01));
  };
}

inline MakeOptimizer adamw() {
  return [](const std::vector<at::Tensor>& parameters) {
    return std::make_unique<torch::optim::AdamW>(
        parameters, torch::optim::AdamWOptions(0.01).weight_decay(0.1));
  };
}

/// Rows [begin, begin + count) of a batch.
struct Batch {
  at::Tensor x;
  at::Tensor y;
  Batch part(int64_t index, int64_t of) const {
    const int64_t rows = x.size(0) / of;
    return {x.narrow(0, index * rows, rows), y.narrow(0, index * rows, rows)};
  }
};

inline Batch make_batch(int64_t rows, int64_t in, int64_t out) {
  return {test_numbers({rows, in}, 71), test_numbers({rows, out}, 72)};
}

using Forward = std::function<at::Tensor(const at::Tensor&)>;

/// Steps of training; the losses.
inline std::vector<double> train(const Forward& forward, torch::optim::Optimizer& optimizer,
                                 const Batch& batch, int steps) {
  std::vector<double> losses;
  for (int step = 0; step < steps; ++step) {
    optimizer.zero_grad();
    const at::Tensor loss = at::mse_loss(forward(batch.x), batch.y);
    loss.backward();
    optimizer.step();
    losses.push_back(loss.item<double>());
  }
  return losses;
}

/// "" if the parameters of both agree to 1e-10, else the first that does not. Collective.
inline std::string parameters_differ(const torch::nn::Module& got, const torch::nn::Module& want) {
  const auto expected = want.named_parameters();
  for (const auto& item : got.named_parameters()) {
    const at::Tensor value = item.value().detach();
    const at::Tensor full = is_dtensor(value) ? full_tensor(value) : value;
    if (!at::allclose(full, expected[item.key()].detach(), 1e-10, 1e-10)) return item.key();
  }
  return "";
}

}  // namespace tessera::test
