// Trains a two-layer perceptron whose hidden layer is sharded over two ranks and whose batch is
// sharded over two more. The model, the loss and the optimizer are plain libtorch; four ranks are
// threads of this process. The losses are those of the same program on one rank, and it says what
// was sent.
#include <tessera/tessera.h>
#include <torch/nn/functional/loss.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/adamw.h>

#include <cmath>
#include <iostream>
#include <stdexcept>

using namespace tessera;

struct Perceptron : torch::nn::Module {
  Perceptron() {
    register_module("up", up);
    register_module("down", down);
  }
  at::Tensor forward(const at::Tensor& x) { return down(torch::gelu(up(x))); }

  torch::nn::Linear up{torch::nn::LinearOptions(16, 64)};
  torch::nn::Linear down{torch::nn::LinearOptions(64, 4)};
};

/// Each rank of tp holds half of the hidden units: columns of the first layer, rows of the second.
void shard_hidden_units(const std::string& name, torch::nn::Module& module,
                        const DeviceMesh& mesh) {
  auto* linear = module.as<torch::nn::LinearImpl>();
  if (name == "up") {
    distribute_(linear->weight, mesh, {Replicate(), Shard(0)});
    distribute_(linear->bias, mesh, {Replicate(), Shard(0)});
  } else if (name == "down") {
    distribute_(linear->weight, mesh, {Replicate(), Shard(1)});
  }  // what is left alone is replicated
}

/// The losses of ten steps on a mesh "dp=..,tp=..".
std::vector<float> train(const std::string& mesh_text, bool report) {
  const DeviceMesh mesh = init_device_mesh(mesh_text);
  tessera::manual_seed(7);  // in every rank
  const at::Tensor inputs = torch::randn({32, 16});
  const at::Tensor targets = torch::tanh(inputs.narrow(1, 0, 4) - inputs.narrow(1, 4, 4));

  auto model = std::make_shared<Perceptron>();
  torch::optim::AdamW optimizer(model->parameters(), torch::optim::AdamWOptions(0.02));
  distribute_module(*model, mesh, shard_hidden_units);  // the optimizer sees it
  reduce_gradients(*model);                             // over the batch, once each

  const at::Tensor x = distribute_tensor(inputs, mesh, {Shard(0), Replicate()});
  const at::Tensor y = distribute_tensor(targets, mesh, {Shard(0), Replicate()});
  std::vector<float> losses;
  comm::Recorder recorder(*comm::current_world());
  for (int step = 0; step < 10; ++step) {
    optimizer.zero_grad();
    const at::Tensor out = redistribute(model->forward(x), {Shard(0), Replicate()});
    const at::Tensor loss = torch::mse_loss(out, y);
    loss.backward();
    optimizer.step();
    losses.push_back(loss.item<float>());
    if (report && step == 0) std::cout << "one step of rank 0:\n" << recorder.to_text() << "\n";
  }
  if (report) tessera::print(model->down->bias.detach());
  return losses;
}

int main() {
  std::vector<float> alone;
  std::vector<float> together;
  run_ranks(1, [&](int) { alone = train("dp=1,tp=1", false); });
  run_ranks(4, [&](int rank) {
    const auto losses = train("dp=2,tp=2", rank == 0);
    if (rank == 0) together = losses;
  });
  for (size_t step = 0; step < alone.size(); ++step) {
    std::cout << "step " << step << ": loss " << alone[step] << " on one rank, " << together[step]
              << " on four\n";
    if (std::abs(alone[step] - together[step]) > 1e-4F) throw std::runtime_error("they differ");
  }
}
