// A training step of an 8-layer MLP on two Gloo processes: alone, with replicas (DDP), fully
// sharded, and fully sharded without resharding after forward. Medians over steps; the four go in
// turns in one run, so that what else the machine does meets them alike.
#include <ATen/Parallel.h>
#include <sys/wait.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/sgd.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "tessera/comm/processes.h"
#include "tessera/comm/world.h"
#include "tessera/fsdp/fully_shard.h"

namespace {

using Clock = std::chrono::steady_clock;
using namespace tessera;

constexpr int kLayers = 8;
constexpr int64_t kBatch = 64;  // of one rank
constexpr int kTurns = 15;

struct Form {
  const char* name;
  std::function<void(torch::nn::Module& layer, const DeviceMesh& mesh)> shard;
  torch::nn::Sequential net = nullptr;
  std::unique_ptr<torch::optim::SGD> optimizer = nullptr;
  std::vector<double> milliseconds = {};
};

torch::nn::Sequential make_net(int64_t width) {
  torch::nn::Sequential net;
  for (int i = 0; i < kLayers; ++i) {
    net->push_back(torch::nn::Linear(width, width));
    net->push_back(torch::nn::ReLU());
  }
  return net;
}

double step(Form& form, const at::Tensor& x, const at::Tensor& y) {
  const auto start = Clock::now();
  form.optimizer->zero_grad();
  at::mse_loss(form.net->forward(x), y).backward();
  form.optimizer->step();
  return std::chrono::duration<double, std::milli>(Clock::now() - start).count();
}

double median(std::vector<double> values) {
  std::ranges::sort(values);
  return values[values.size() / 2];
}

void measure(int64_t width, const DeviceMesh& mesh, bool report) {
  std::vector<Form> forms;
  forms.push_back({"one process", {}});
  forms.push_back({"replicate", [](auto& layer, const auto& on) { replicate(layer, on); }});
  forms.push_back({"fully_shard", [](auto& layer, const auto& on) { fully_shard(layer, on); }});
  forms.push_back({"fully_shard, kept", [](auto& layer, const auto& on) {
                     fully_shard(layer, on, {.reshard_after_forward = false});
                   }});
  const at::Tensor x = at::randn({kBatch, width});
  const at::Tensor y = at::randn({kBatch, width});
  for (Form& form : forms) {
    form.net = make_net(width);
    form.optimizer = std::make_unique<torch::optim::SGD>(form.net->parameters(), 0.01);
    for (const auto& layer : form.net->children()) {
      if (form.shard && layer->as<torch::nn::LinearImpl>() != nullptr) form.shard(*layer, mesh);
    }
    for (int warm = 0; warm < 3; ++warm) step(form, x, y);
  }
  for (int turn = 0; turn < kTurns; ++turn) {
    for (Form& form : forms) form.milliseconds.push_back(step(form, x, y));
  }
  if (!report) return;
  const double alone = median(forms[0].milliseconds);
  for (const Form& form : forms) {
    const double ms = median(form.milliseconds);
    std::printf("| %5ld | %-17s | %8.2f | %6.2f |\n", width, form.name, ms, ms / alone);
  }
  std::fflush(stdout);
}

}  // namespace

int main() {
  setenv("MASTER_ADDR", "127.0.0.1", 1);
  setenv("MASTER_PORT", std::to_string(20000 + getpid() % 20000).c_str(), 1);
  setenv("WORLD_SIZE", "2", 1);
  at::set_num_threads(1);  // two processes share the machine
  const pid_t child = fork();
  setenv("RANK", child == 0 ? "1" : "0", 1);
  if (child != 0) {
    std::printf(
        "A step of an 8-layer MLP, two Gloo processes, float32, %ld rows a rank\n\n"
        "| width | form              |       ms |  ratio |\n"
        "|-------|-------------------|----------|--------|\n",
        kBatch);
  }
  const DeviceMesh mesh = comm::init_device_mesh("dp=2");
  for (const int64_t width : {256, 1024}) measure(width, mesh, child != 0);
  if (child == 0) return 0;
  int status = 0;
  waitpid(child, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : 1;
}
