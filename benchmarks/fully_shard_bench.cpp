// A training step of an 8-layer MLP on two Gloo processes, one group per layer, in several
// variants:
//
//   one process               no communication
//   one process, then bare    and after its step the bytes that fully_shard communicates, as bare
//                             calls: two all_gathers and a reduce_scatter per layer
//   replicate, fully_shard, fully_shard without resharding after forward
//
//   fully_shard_bench                     medians; the variants alternate within one run, so that
//                                         other load on the machine affects them equally
//   fully_shard_bench touch               the overhead of the library: a step of tiny layers on
//                                         fake ranks, compared with the same step without the
//                                         library and its messages as bare calls, in CPU time
//   fully_shard_bench worker FORM WIDTH   one rank of one variant (given by RANK, WORLD_SIZE,
//                                         MASTER_*), controlled by lines on its input: "steps N"
//                                         prints N times in ms, "memory" the MiB before the model
//                                         was created and the peak. For compare_fsdp.py.
#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>
#include <sys/wait.h>
#include <time.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/sgd.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <functional>
#include <iostream>
#include <memory>
#include <string>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <vector>

#include "tessera/comm/fake.h"
#include "tessera/comm/processes.h"
#include "tessera/comm/world.h"
#include "tessera/fsdp/fully_shard.h"
#include "tessera/observe/recorder.h"

namespace {

using Clock = std::chrono::steady_clock;
using namespace tessera;

constexpr int kLayers = 8;
constexpr int64_t kBatch = 64;  // per rank
constexpr int kTurns = 15;
constexpr int kWarm = 3;

torch::nn::Sequential make_net(int64_t width) {
  torch::nn::Sequential net;
  for (int i = 0; i < kLayers; ++i) {
    net->push_back(torch::nn::Linear(width, width));
    net->push_back(torch::nn::ReLU());
  }
  return net;
}

void bare_calls(const DeviceMesh& mesh, int64_t width) {
  const auto group = comm::group_of(mesh, "dp");
  auto& backend = group->backend(c10::DeviceType::CPU);
  at::Tensor whole = at::empty({width * (width + 1)});
  at::Tensor part = at::empty({whole.numel() / group->size()});
  for (int i = 0; i < 2 * kLayers; ++i) backend._allgather_base(whole, part, {})->wait();
  for (int i = 0; i < kLayers; ++i) backend._reduce_scatter_base(part, whole, {})->wait();
}

struct Form {
  const char* name;
  std::function<void(torch::nn::Module& layer, const DeviceMesh& mesh)> shard;
  std::function<void(const DeviceMesh& mesh, int64_t width)> after = {};
};

const std::vector<Form>& forms() {
  static const std::vector<Form> all = {
      {"one process", {}},
      {"one process, then bare", {}, bare_calls},
      {"replicate", [](auto& layer, const auto& on) { replicate(layer, on); }},
      {"fully_shard", [](auto& layer, const auto& on) { fully_shard(layer, on); }},
      {"fully_shard, kept", [](auto& layer, const auto& on) {
         fully_shard(layer, on, {.reshard_after_forward = false});
       }}};
  return all;
}

class Trainer {
 public:
  Trainer(const Form& form, int64_t width, const DeviceMesh& mesh)
      : form_(form),
        width_(width),
        mesh_(mesh),
        net_(make_net(width)),
        optimizer_(net_->parameters(), 0.01),
        x_(at::randn({kBatch, width})),
        y_(at::randn({kBatch, width})) {
    for (const auto& layer : net_->children()) {
      if (form.shard && layer->as<torch::nn::LinearImpl>() != nullptr) form.shard(*layer, mesh);
    }
    for (int i = 0; i < kWarm; ++i) step();
  }

  double step() {
    const auto start = Clock::now();
    optimizer_.zero_grad();
    at::mse_loss(net_->forward(x_), y_).backward();
    optimizer_.step();
    if (form_.after) form_.after(mesh_, width_);
    return std::chrono::duration<double, std::milli>(Clock::now() - start).count();
  }

 private:
  const Form& form_;
  int64_t width_;
  DeviceMesh mesh_;
  torch::nn::Sequential net_;
  torch::optim::SGD optimizer_;
  at::Tensor x_;
  at::Tensor y_;
};

double median(std::vector<double> values) {
  std::ranges::sort(values);
  return values[values.size() / 2];
}

void measure(int64_t width, const DeviceMesh& mesh, bool report) {
  std::vector<std::unique_ptr<Trainer>> trainers;
  for (const Form& form : forms()) trainers.push_back(std::make_unique<Trainer>(form, width, mesh));
  std::vector<std::vector<double>> milliseconds(trainers.size());
  for (int turn = 0; turn < kTurns; ++turn) {
    for (size_t i = 0; i < trainers.size(); ++i) milliseconds[i].push_back(trainers[i]->step());
  }
  if (!report) return;
  const double alone = median(milliseconds[0]);
  for (size_t i = 0; i < trainers.size(); ++i) {
    const double ms = median(milliseconds[i]);
    std::printf("| %5ld | %-22s | %8.2f | %6.2f |\n", width, forms()[i].name, ms, ms / alone);
  }
  std::fflush(stdout);
}

double cpu_microseconds() {
  timespec now{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) * 1e6 + static_cast<double>(now.tv_nsec) * 1e-3;
}

/// The minimum of many runs.
double least_cpu(const std::function<void()>& before, const std::function<void()>& what) {
  double least = 1e9;
  for (int i = 0; i < 2000; ++i) {
    before();
    const double start = cpu_microseconds();
    what();
    least = std::min(least, cpu_microseconds() - start);
  }
  return least;
}

double least_cpu_of_step(torch::nn::Sequential& net, const at::Tensor& x) {
  return least_cpu([&] { net->zero_grad(); }, [&] { net->forward(x).sum().backward(); });
}

/// The messages of one step, as bare calls.
double least_cpu_of_messages(torch::nn::Sequential& net, const at::Tensor& x,
                             const DeviceMesh& mesh) {
  const comm::Recorder recorder(*comm::current_world());
  net->zero_grad();
  net->forward(x).sum().backward();
  struct Message {
    comm::CommOp op;
    at::Tensor in, out;
  };
  std::vector<Message> messages;
  for (const auto& event : recorder.events()) {
    messages.push_back({event.op, at::empty(event.shapes_in[0]), at::empty(event.shapes_out[0])});
  }
  auto& backend = comm::group_of(mesh, "dp")->backend(c10::DeviceType::CPU);
  return least_cpu([] {},
                   [&] {
                     for (Message& m : messages) {
                       if (m.op == comm::CommOp::all_gather) {
                         backend._allgather_base(m.out, m.in, {})->wait();
                       } else {
                         backend._reduce_scatter_base(m.out, m.in, {})->wait();
                       }
                     }
                   });
}

void measure_touches() {
  constexpr int64_t kTiny = 4;
  const comm::WorldGuard fake(comm::fake_world(0, 2));
  const DeviceMesh mesh = comm::init_device_mesh("dp=2");
  const at::Tensor x = at::ones({1, kTiny});
  auto plain = make_net(kTiny);
  const double alone = least_cpu_of_step(plain, x);
  std::printf("| groups     | us a step | without | messages | us a parameter | us a touch |\n");
  for (const bool merged : {true, false}) {
    auto net = make_net(kTiny);
    for (const auto& layer : net->children()) {
      if (layer->as<torch::nn::LinearImpl>() == nullptr) continue;
      fully_shard(*layer, mesh, {.merge_bytes = merged ? 1 << 20 : 0});
    }
    const double sharded = least_cpu_of_step(net, x);
    const double messages = least_cpu_of_messages(net, x, mesh);
    // Each in forward, the weights except the first in backward, and each gradient.
    constexpr int kTouches = 2 * kLayers + kLayers - 1 + 2 * kLayers;
    const double more = sharded - alone - messages;
    std::printf("| %-10s | %9.1f | %7.1f | %8.1f | %14.2f | %10.2f |\n",
                merged ? "all merged" : "8", sharded, alone, messages, more / (2 * kLayers),
                more / kTouches);
  }
}

/// Memory of this process in MiB: "VmRSS" now, "VmHWM" at its peak.
double memory(const std::string& field) {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    if (line.starts_with(field + ":")) return std::stod(line.substr(field.size() + 1)) / 1024;
  }
  return 0;
}

int work(const std::string& name, int64_t width) {
  const auto form = std::ranges::find(forms(), name, &Form::name);
  if (form == forms().end()) return 2;
  const DeviceMesh mesh = comm::init_device_mesh("dp=2");
  const double before = memory("VmRSS");
  Trainer trainer(*form, width, mesh);
  for (std::string line; std::getline(std::cin, line);) {
    if (line.starts_with("steps ")) {
      for (int i = std::stoi(line.substr(6)); i > 0; --i) std::cout << trainer.step() << ' ';
    } else if (line == "memory") {
      std::cout << before << ' ' << memory("VmHWM");
    }
    std::cout << std::endl;
  }
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  at::set_num_threads(1);  // two processes share the machine
  if (argc == 4 && std::string(argv[1]) == "worker") return work(argv[2], std::stol(argv[3]));
  if (argc == 2 && std::string(argv[1]) == "touch") {
    measure_touches();
    return 0;
  }
  setenv("MASTER_ADDR", "127.0.0.1", 1);
  setenv("MASTER_PORT", std::to_string(20000 + getpid() % 20000).c_str(), 1);
  setenv("WORLD_SIZE", "2", 1);
  const pid_t child = fork();
  setenv("RANK", child == 0 ? "1" : "0", 1);
  if (child != 0) {
    std::printf(
        "A step of an 8-layer MLP, two Gloo processes, float32, %ld rows a rank\n\n"
        "| width | form                   |       ms |  ratio |\n"
        "|-------|------------------------|----------|--------|\n",
        kBatch);
  }
  const DeviceMesh mesh = comm::init_device_mesh("dp=2");
  for (const int64_t width : {256, 1024}) measure(width, mesh, child != 0);
  if (child == 0) return 0;
  int status = 0;
  waitpid(child, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : 1;
}
