// Trains a small classifier of spirals with fully_shard: every rank holds a third of each parameter
// and of the optimizer's state, and works on a third of the batch. The module and the loop are
// plain libtorch. Three ranks are threads of this process; it says what a step sends, how much is
// gathered at a time, and that the losses are those of one rank with the whole batch.
#include <tessera/tessera.h>
#include <torch/nn/functional/loss.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/adamw.h>

#include <cmath>
#include <iostream>
#include <stdexcept>

using namespace tessera;

constexpr int64_t kRows = 96;
constexpr int kSteps = 30;

torch::nn::Sequential make_net() {
  using torch::nn::Linear;
  torch::nn::Sequential net(Linear(2, 64), torch::nn::Tanh(), Linear(64, 64), torch::nn::Tanh(),
                            Linear(64, 3));
  const torch::NoGradGuard no_grad;
  tessera::manual_seed(3);  // every rank starts with the same values
  for (auto& parameter : net->parameters()) parameter.copy_(at::randn_like(parameter) * 0.3);
  return net;
}

/// Points on three arms, and which arm each is on.
std::pair<at::Tensor, at::Tensor> spirals() {
  const at::Tensor arm = at::arange(kRows) % 3;
  const at::Tensor radius = at::linspace(0.2, 2.0, kRows);
  const at::Tensor angle = radius * 2.5 + arm * 2.0944;
  return {at::stack({radius * angle.cos(), radius * angle.sin()}, 1), arm};
}

double loss_after_training(int rank, int ranks, bool report) {
  const DeviceMesh mesh = init_device_mesh("dp=" + std::to_string(ranks));
  auto net = make_net();
  torch::optim::AdamW optimizer(net->parameters(), torch::optim::AdamWOptions(0.01));
  for (const auto& layer : net->children()) fully_shard(*layer, mesh);  // a group for each layer
  if (report) {
    for (const auto& item : net->named_parameters()) {
      std::cout << item.key() << ": " << sharding(item.value()).to_text() << "\n";
    }
  }
  const auto [points, arms] = spirals();
  const int64_t rows = kRows / ranks;
  const at::Tensor x = points.narrow(0, rank * rows, rows);
  const at::Tensor y = arms.narrow(0, rank * rows, rows);
  comm::Recorder recorder(*comm::current_world());
  for (int step = 0; step < kSteps; ++step) {
    recorder.clear();
    optimizer.zero_grad();
    torch::nn::functional::cross_entropy(net->forward(x), y).backward();
    optimizer.step();
  }
  if (report) {
    std::cout << "the last step:\n" << recorder.to_text() << "\n";
    std::cout << "gathered: " << gathered_memory(mesh).peak_bytes << " bytes at most, "
              << gathered_memory(mesh).bytes << " now\n";
  }
  const torch::NoGradGuard no_grad;
  return torch::nn::functional::cross_entropy(net->forward(points), arms).item<double>();
}

int main() {
  double alone = 0;
  double together = 0;
  run_ranks(1, [&](int rank) { alone = loss_after_training(rank, 1, false); });
  run_ranks(3, [&](int rank) {
    const double loss = loss_after_training(rank, 3, rank == 0);
    if (rank == 0) together = loss;
  });
  std::cout << "loss after " << kSteps << " steps: " << alone << " on one rank, " << together
            << " on three\n";
  if (std::abs(alone - together) > 1e-4) throw std::runtime_error("they differ");
}
