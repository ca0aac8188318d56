// A training step of a small GPT on the CPU, on one rank: plain, every tensor sharded, fully_shard.
// The tensors are so small that the step is the overhead of its ops, as on a GPU at a small batch.
//
//   step_bench          microseconds a step, by turns
//   step_bench <form>   of one form alone, for a profiler
//   step_bench count    runs each form a few times for callgrind (count_instructions.sh)
#include <ATen/Parallel.h>
#include <ATen/Utils.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#if __has_include(<valgrind/callgrind.h>)
#include <valgrind/callgrind.h>
#endif

#include "benchmarks/gpt.h"
#include "benchmarks/recycling_allocator.h"
#include "tessera/comm/fake.h"
#include "tessera/comm/world.h"

namespace {

using namespace tessera;
using Clock = std::chrono::steady_clock;

constexpr const char* kForms[] = {"plain", "sharded", "fully_shard"};
constexpr benchmarks::GptSize kSize{
    .words = 32, .width = 16, .heads = 2, .context = 8, .blocks = 6};
constexpr int kWarm = 5;
constexpr int kCounted = 4;

std::unique_ptr<benchmarks::TrainedGpt> trained(const char* form) {
  const DeviceMesh mesh = DeviceMesh::parse("dp=1").in_world(comm::fake_world(0, 1));
  at::manual_seed(0);
  auto model = std::make_unique<benchmarks::TrainedGpt>(
      form, mesh, kSize,
      benchmarks::GptData{.batch = 1, .length = 4, .options = at::TensorOptions(at::kFloat)});
  for (int i = 0; i < kWarm; ++i) model->step();
  return model;
}

/// One dump a form: the cost of kCounted warm steps. Plain first, as in dispatch_bench.
int count() {
#if __has_include(<valgrind/callgrind.h>)
  benchmarks::RecyclingAllocator::install();
  for (const char* form : kForms) {
    const auto model = trained(form);
    CALLGRIND_ZERO_STATS;
    for (int i = 0; i < kCounted; ++i) model->step();
    CALLGRIND_DUMP_STATS_AT(form);
  }
  return 0;
#else
  std::fprintf(stderr, "count: built without valgrind's headers\n");
  return 2;
#endif
}

void compare(const std::vector<const char*>& forms) {
  constexpr int kSteps = 20;
  constexpr int kRounds = 15;
  std::vector<std::unique_ptr<benchmarks::TrainedGpt>> models;
  std::vector<std::vector<double>> times;
  for (const char* form : forms) models.push_back(trained(form));
  times.resize(models.size());
  for (int round = 0; round < kRounds; ++round) {
    for (size_t i = 0; i < models.size(); ++i) {
      const auto begin = Clock::now();
      for (int step = 0; step < kSteps; ++step) models[i]->step();
      const std::chrono::duration<double, std::micro> spent = Clock::now() - begin;
      times[i].push_back(spent.count() / kSteps);
    }
  }
  for (size_t i = 0; i < models.size(); ++i) {
    std::ranges::sort(times[i]);
    std::printf("%-12s %8.0f us\n", forms[i], times[i][times[i].size() / 2]);
  }
}

}  // namespace

int main(int argc, char** argv) {
  at::set_num_threads(1);
  if (argc == 2 && std::string(argv[1]) == "count") return count();
  compare(argc == 2 ? std::vector<const char*>{argv[1]}
                    : std::vector<const char*>(std::begin(kForms), std::end(kForms)));
}
