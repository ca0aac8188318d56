// A training step of a 124M GPT on one GPU, in bfloat16 with fused AdamW, on one rank:
//
//   plain          libtorch alone
//   sharded        every tensor is a sharded one, on a mesh of one rank
//   fully_shard    a group a block and one for the rest
//   ..., captured  the same step recorded once as a CUDA graph, then replayed
//
//   gpu_bench [BATCHxLENGTH ...]   prints a line a form: ms per step (median of rounds in which the
//                                  forms take turns), peak memory in MiB by the allocator
//
// benchmarks/compare_gpu.py prints them beside PyTorch's own. Built where torch has CUDA.
#include <ATen/Context.h>
#include <ATen/DeviceAccelerator.h>
#include <ATen/cuda/CUDAGraph.h>
#include <ATen/ops/_foreach_add.h>
#include <ATen/ops/_fused_adamw.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cross_entropy_loss.h>
#include <ATen/ops/gelu.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/scaled_dot_product_attention.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>
#include <c10/core/CachingDeviceAllocator.h>
#include <c10/cuda/CUDAGuard.h>
#include <torch/nn/module.h>
#include <torch/nn/modules/container/modulelist.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/normalization.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "tessera/comm/processes.h"
#include "tessera/comm/world.h"
#include "tessera/dtensor/dtensor.h"
#include "tessera/fsdp/fully_shard.h"
#include "tessera/module/distribute_module.h"

namespace {

using namespace tessera;
using Clock = std::chrono::steady_clock;

constexpr int64_t kWords = 50304;
constexpr int64_t kWidth = 768;
constexpr int64_t kHeads = 12;
constexpr int64_t kContext = 1024;
constexpr int kBlocks = 12;
constexpr int kWarm = 5;
constexpr int kSteps = 10;
constexpr int kRounds = 7;

struct BlockImpl : torch::nn::Module {
  BlockImpl()
      : first_norm(torch::nn::LayerNormOptions({kWidth})),
        second_norm(torch::nn::LayerNormOptions({kWidth})),
        qkv(kWidth, 3 * kWidth),
        out(kWidth, kWidth),
        up(kWidth, 4 * kWidth),
        down(4 * kWidth, kWidth) {
    register_module("first_norm", first_norm);
    register_module("second_norm", second_norm);
    register_module("qkv", qkv);
    register_module("out", out);
    register_module("up", up);
    register_module("down", down);
  }

  at::Tensor forward(at::Tensor x) {
    const auto parts = qkv(first_norm(x)).unflatten(2, {3, kHeads, -1}).unbind(2);
    const auto by_head = [&](int i) { return parts[static_cast<size_t>(i)].transpose(1, 2); };
    const at::Tensor seen = at::scaled_dot_product_attention(by_head(0), by_head(1), by_head(2), {},
                                                             0.0, /*is_causal=*/true);
    x = x + out(seen.transpose(1, 2).flatten(2));
    return x + down(at::gelu(up(second_norm(x))));
  }

  torch::nn::LayerNorm first_norm, second_norm;
  torch::nn::Linear qkv, out, up, down;
};
TORCH_MODULE(Block);

/// GPT-2 small, with the head tied to the embedding.
struct GptImpl : torch::nn::Module {
  GptImpl()
      : token(kWords, kWidth),
        position(kContext, kWidth),
        norm(torch::nn::LayerNormOptions({kWidth})) {
    register_module("token", token);
    register_module("position", position);
    for (int i = 0; i < kBlocks; ++i) blocks->push_back(Block());
    register_module("blocks", blocks);
    register_module("norm", norm);
  }

  at::Tensor loss(const at::Tensor& words, const at::Tensor& places, const at::Tensor& targets) {
    at::Tensor x = token(words) + position(places);
    for (const auto& block : *blocks) x = block->as<Block>()->forward(x);
    const at::Tensor logits = at::linear(norm(x), token->weight);
    return at::cross_entropy_loss(logits.flatten(0, 1), targets.flatten());
  }

  torch::nn::Embedding token, position;
  torch::nn::ModuleList blocks;
  torch::nn::LayerNorm norm;
};
TORCH_MODULE(Gpt);

/// torch::optim has no fused kernel; this calls it as Python's does.
struct FusedAdamW {
  explicit FusedAdamW(std::vector<at::Tensor> all) : parameters(std::move(all)) {
    for (const at::Tensor& p : parameters) {
      const at::Tensor value = p.detach();
      first.push_back(at::zeros_like(value));
      second.push_back(at::zeros_like(value));
      // Like a sum of the parameter, so that it is sharded if the parameter is.
      steps.push_back(at::zeros_like(value.to(at::kFloat).sum()));
    }
  }

  void step() {
    std::vector<at::Tensor> gradients;
    for (const at::Tensor& p : parameters) gradients.push_back(p.grad());
    const c10::AutoGradMode no_grad(false);
    at::_foreach_add_(steps, 1);
    at::_fused_adamw_(parameters, gradients, first, second, {}, steps, 1e-4, 0.9, 0.95, 0.1, 1e-8,
                      false, false);
  }

  void zero_grad() {
    for (at::Tensor& p : parameters) p.mutable_grad().reset();
  }

  std::vector<at::Tensor> parameters, first, second, steps;
};

/// A model in one of the forms, with its data and optimizer.
class Trained {
 public:
  Trained(const std::string& form, const DeviceMesh& mesh, int64_t batch, int64_t length) {
    at::manual_seed(0);
    model_->to(at::kCUDA);
    model_->to(at::kBFloat16);
    const auto options = at::TensorOptions(at::kCUDA).dtype(at::kLong);
    words_ = at::randint(kWords, {batch, length}, options);
    places_ = at::arange(length, options);
    if (form.starts_with("sharded")) {
      distribute_module(*model_, mesh);
      words_ = distribute_tensor(words_, mesh, {Replicate()});
      places_ = distribute_tensor(places_, mesh, {Replicate()});
    } else if (form.starts_with("fully_shard")) {
      for (const auto& block : *model_->blocks) fully_shard(*block, mesh);
      fully_shard(*model_, mesh);
    }
    optimizer_ = std::make_unique<FusedAdamW>(model_->parameters());
  }

  void step() {
    model_->loss(words_, places_, words_).backward();
    optimizer_->step();
    optimizer_->zero_grad();
  }

 private:
  Gpt model_;
  std::unique_ptr<FusedAdamW> optimizer_;
  at::Tensor words_, places_;
};

c10::DeviceAllocator& allocator() { return *c10::getDeviceAllocator(c10::kCUDA); }

double peak_mib() {
  const auto stats = allocator().getDeviceStats(0);
  return static_cast<double>(stats.allocated_bytes[0].peak) / (1 << 20);
}

/// One form, ready to run: its steps warm, its graph captured.
class Subject {
 public:
  Subject(const std::string& form, const DeviceMesh& mesh, int64_t batch, int64_t length)
      : name(form) {
    allocator().emptyCache();
    allocator().resetPeakStats(0);
    const double before = peak_mib();
    const c10::cuda::CUDAStream side = c10::cuda::getStreamFromPool();
    const c10::cuda::CUDAStreamGuard on(side);
    trained_ = std::make_unique<Trained>(form, mesh, batch, length);
    for (int i = 0; i < kWarm; ++i) trained_->step();
    if (form.ends_with("captured")) {
      at::accelerator::synchronizeDevice(0);
      graph_ = std::make_unique<at::cuda::CUDAGraph>();
      graph_->capture_begin();
      trained_->step();
      graph_->capture_end();
    }
    at::accelerator::synchronizeDevice(0);
    memory = peak_mib() - before;
  }

  void measure() {
    at::accelerator::synchronizeDevice(0);
    const auto begin = Clock::now();
    for (int i = 0; i < kSteps; ++i) {
      if (graph_ != nullptr) {
        graph_->replay();
      } else {
        trained_->step();
      }
    }
    at::accelerator::synchronizeDevice(0);
    const std::chrono::duration<double, std::milli> spent = Clock::now() - begin;
    times.push_back(spent.count() / kSteps);
  }

  std::string name;
  double memory = 0;
  std::vector<double> times;

 private:
  std::unique_ptr<Trained> trained_;
  std::unique_ptr<at::cuda::CUDAGraph> graph_;
};

double median(std::vector<double> values) {
  std::ranges::sort(values);
  return values[values.size() / 2];
}

void compare(const DeviceMesh& mesh, int64_t batch, int64_t length) {
  std::vector<std::unique_ptr<Subject>> subjects;
  for (const char* form : {"plain", "sharded", "fully_shard", "plain, captured",
                           "sharded, captured", "fully_shard, captured"}) {
    try {
      subjects.push_back(std::make_unique<Subject>(form, mesh, batch, length));
    } catch (const std::exception& error) {
      std::printf("%ldx%ld\t%s\tfailed: %s\n", batch, length, form, error.what());
    }
  }
  for (int round = 0; round < kRounds; ++round) {
    for (const auto& subject : subjects) subject->measure();
  }
  for (const auto& subject : subjects) {
    std::printf("%ldx%ld\t%s\t%.2f ms\t%.0f MiB\n", batch, length, subject->name.c_str(),
                median(subject->times), subject->memory);
  }
  std::fflush(stdout);
}

}  // namespace

int main(int argc, char** argv) {
  at::globalContext().lazyInitDevice(c10::kCUDA);
  const DeviceMesh mesh = comm::init_device_mesh("cuda:dp=1");
  std::vector<std::string> shapes(argv + 1, argv + argc);
  if (shapes.empty()) shapes = {"8x1024", "1x64"};
  for (const std::string& shape : shapes) {
    const size_t cross = shape.find('x');
    if (cross == std::string::npos) {
      std::fprintf(stderr, "gpu_bench: '%s' is not BATCHxLENGTH\n", shape.c_str());
      return 2;
    }
    compare(mesh, std::stoll(shape.substr(0, cross)), std::stoll(shape.substr(cross + 1)));
  }
  comm::close_process_world();
  return 0;
}
