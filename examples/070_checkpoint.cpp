// Trains a few steps on four ranks, saves module and optimizer, and goes on from the checkpoint on
// two ranks and on one, with other placements. Every continuation ends with the parameters of the
// run that was never interrupted. The ranks are threads of this process.
#include <tessera/tessera.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/adamw.h>

#include <filesystem>
#include <iostream>
#include <stdexcept>

using namespace tessera;

constexpr int kSteps = 6;
constexpr int kSavedAfter = 3;

struct Trained {
  torch::nn::Sequential net;
  torch::optim::AdamW optimizer;
  int64_t step = 0;

  explicit Trained(const DeviceMesh& mesh)
      : net(torch::nn::Linear(6, 20), torch::nn::Tanh(), torch::nn::Linear(20, 3)),
        optimizer(net->parameters(), torch::optim::AdamWOptions(0.05)) {
    const torch::NoGradGuard no_grad;
    tessera::manual_seed(1);
    net->to(at::kDouble);
    for (auto& parameter : net->parameters()) parameter.copy_(at::randn_like(parameter) * 0.3);
    for (const auto& layer : net->children()) fully_shard(*layer, mesh);
  }

  /// Everything that the run goes on from: names and handles, no copies.
  State state() {
    State out = {{"step", PlainValue(step)}};
    add_module(out, "model.", *net);
    add_optimizer(out, "optim.", optimizer, *net);
    return out;
  }

  void resume(const std::filesystem::path& directory) {
    State from = state();
    load(from, directory);  // each rank reads what it holds
    take_optimizer(from, "optim.", optimizer, *net);
    step = std::get<PlainValue>(from.at("step")).integer();
  }

  void train(int64_t until) {
    const at::Tensor x = at::linspace(-1, 1, 48, at::kDouble).reshape({8, 6});
    for (; step < until; ++step) {
      optimizer.zero_grad();
      net->forward(x).square().mean().backward();  // the same batch on every rank
      optimizer.step();
    }
  }
};

int main() {
  const auto root = std::filesystem::temp_directory_path() / "tessera_example_070";
  std::filesystem::remove_all(root);
  FullStateDict expected;
  run_ranks(4, [&](int rank) {
    Trained run(init_device_mesh("dp=2,tp=2"));
    run.train(kSavedAfter);
    save_step(run.state(), root, run.step, {.keep = 2});
    run.train(kSteps);
    const FullStateDict whole = full_state_dict(*run.net);
    if (rank == 0) expected = whole;
  });
  const auto saved = step_path(root, latest_step(root).value());
  for (const auto& file : std::filesystem::directory_iterator(saved)) {
    std::cout << file.path().filename().string() << ": " << file.file_size() << " bytes\n";
  }
  for (const int ranks : {2, 1}) {
    run_ranks(ranks, [&](int rank) {
      Trained run(init_device_mesh("dp=" + std::to_string(ranks)));
      run.resume(saved);
      run.train(kSteps);
      double worst = 0;
      for (const auto& [name, value] : full_state_dict(*run.net)) {
        worst = std::max(worst, (value - expected.at(name)).abs().max().item<double>());
      }
      if (rank == 0) {
        std::cout << "resumed on " << ranks << " ranks from step " << kSavedAfter << ": after "
                  << kSteps << " steps parameters differ by " << worst << "\n";
      }
      if (worst > 1e-12) throw std::runtime_error("the resumed run went another way");
    });
  }
  std::filesystem::remove_all(root);
}
