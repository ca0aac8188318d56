// A training step of a 124M GPT on one GPU, in bfloat16 with fused AdamW, on one rank:
//
//   plain          libtorch alone
//   sharded        every tensor is a sharded one, on a mesh of one rank
//   fully_shard    a group a block and one for the rest
//   ..., captured  the same step recorded once as a CUDA graph, then replayed
//
//   gpu_bench [BATCHxLENGTH ...] [FORM]   prints a line a form, or of one form alone: ms per step
//                                         (median of rounds in which the forms take turns), peak
//                                         memory in MiB by the allocator, time over plain
//
// The time over plain is that of the same round, so that a change of the machine's speed does not
// decide: the median, and the quartiles between which half of the rounds are.
//
// benchmarks/compare_gpu.py prints them beside PyTorch's own. Built where torch has CUDA.
#include <ATen/Context.h>
#include <ATen/DeviceAccelerator.h>
#include <ATen/cuda/CUDAGraph.h>
#include <c10/core/CachingDeviceAllocator.h>
#include <c10/cuda/CUDAGuard.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <iterator>
#include <memory>
#include <string>
#include <vector>

#include "benchmarks/gpt.h"
#include "tessera/comm/processes.h"
#include "tessera/comm/world.h"

namespace {

using namespace tessera;
using Clock = std::chrono::steady_clock;

constexpr int kWarm = 5;
constexpr int kSteps = 5;
constexpr int kRounds = 15;                     // at least, and
constexpr std::chrono::seconds kMeasuring(12);  // as many more as fit in this time
constexpr const char* kForms[] = {"plain",           "sharded",           "fully_shard",
                                  "plain, captured", "sharded, captured", "fully_shard, captured"};

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
    at::manual_seed(0);
    trained_ = std::make_unique<benchmarks::TrainedGpt>(
        form, mesh, benchmarks::GptSize{},
        benchmarks::GptData{.batch = batch,
                            .length = length,
                            .options = at::TensorOptions(at::kCUDA).dtype(at::kBFloat16)});
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
  std::unique_ptr<benchmarks::TrainedGpt> trained_;
  std::unique_ptr<at::cuda::CUDAGraph> graph_;
};

/// The value that this part of all values is less than: 0.5 is the median.
double quantile(std::vector<double> values, double part) {
  std::ranges::sort(values);
  return values[static_cast<size_t>(part * static_cast<double>(values.size() - 1) + 0.5)];
}

/// Of each round.
std::vector<double> over_plain(const Subject& subject, const Subject& plain) {
  std::vector<double> ratios;
  for (size_t i = 0; i < subject.times.size(); ++i) {
    ratios.push_back(subject.times[i] / plain.times[i]);
  }
  return ratios;
}

void compare(const DeviceMesh& mesh, const std::vector<std::string>& forms, int64_t batch,
             int64_t length) {
  std::vector<std::unique_ptr<Subject>> subjects;
  for (const std::string& form : forms) {
    try {
      subjects.push_back(std::make_unique<Subject>(form, mesh, batch, length));
    } catch (const std::exception& error) {
      std::printf("%ldx%ld\t%s\tfailed: %s\n", batch, length, form.c_str(), error.what());
    }
  }
  const auto end = Clock::now() + kMeasuring;
  for (int round = 0; round < kRounds || Clock::now() < end; ++round) {
    for (const auto& subject : subjects) subject->measure();
  }
  for (const auto& subject : subjects) {
    std::printf("%ldx%ld\t%s\t%.2f ms\t%.0f MiB", batch, length, subject->name.c_str(),
                quantile(subject->times, 0.5), subject->memory);
    if (subjects.front()->name == "plain") {
      const auto ratios = over_plain(*subject, *subjects.front());
      for (const double part : {0.5, 0.25, 0.75}) std::printf("\t%.3f", quantile(ratios, part));
    }
    std::printf("\n");
  }
  std::fflush(stdout);
}

}  // namespace

int main(int argc, char** argv) {
  at::globalContext().lazyInitDevice(c10::kCUDA);
  const DeviceMesh mesh = comm::init_device_mesh("cuda:dp=1");
  std::vector<std::string> shapes(argv + 1, argv + argc);
  std::vector<std::string> forms(std::begin(kForms), std::end(kForms));
  if (!shapes.empty() && std::ranges::find(forms, shapes.back()) != forms.end()) {
    forms = {shapes.back()};
    shapes.pop_back();
  }
  if (shapes.empty()) shapes = {"8x1024", "1x64"};
  for (const std::string& shape : shapes) {
    const size_t cross = shape.find('x');
    if (cross == std::string::npos) {
      std::fprintf(stderr, "gpu_bench: '%s' is not BATCHxLENGTH\n", shape.c_str());
      return 2;
    }
    compare(mesh, forms, std::stoll(shape.substr(0, cross)), std::stoll(shape.substr(cross + 1)));
  }
  comm::close_process_world();
  return 0;
}
