// A training step of a small GPT on the CPU, on one rank: plain, every tensor sharded, fully_shard.
// The tensors are so small that the step is the overhead of its ops, as on a GPU at a small batch.
//
//   step_bench          microseconds a step, by turns; then with backward on another thread, where
//                       autograd runs it for a GPU: what one thread allocates the other frees
//   step_bench <form>   of one form alone, for a profiler
//   step_bench count    runs each form a few times for callgrind (count_instructions.sh)
#include <ATen/Parallel.h>
#include <ATen/Utils.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
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

/// Runs functions one at a time on a thread of its own.
class Worker {
 public:
  Worker() : thread_([this] { serve(); }) {}
  ~Worker() { run(nullptr); }

  /// Returns when `work` has run; nullptr ends the thread.
  void run(std::function<void()> work) {
    const bool last = work == nullptr;
    std::unique_lock lock(mutex_);
    work_ = std::move(work);
    asked_ = true;
    changed_.notify_all();
    changed_.wait(lock, [this] { return !asked_; });
    lock.unlock();
    if (last) thread_.join();
  }

 private:
  void serve() {
    std::unique_lock lock(mutex_);
    for (bool more = true; more;) {
      changed_.wait(lock, [this] { return asked_; });
      more = work_ != nullptr;
      if (more) work_();
      asked_ = false;
      changed_.notify_all();
    }
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::function<void()> work_;
  bool asked_ = false;
  std::thread thread_;
};

using Step = std::function<void(benchmarks::TrainedGpt&)>;

double median(std::vector<double> values) {
  std::ranges::sort(values);
  return values[values.size() / 2];
}

/// Ratios are medians too, each to the first form in the same round: the machine's speed changes.
void compare(const std::vector<const char*>& forms, const Step& step) {
  constexpr int kSteps = 10;
  constexpr int kRounds = 40;
  std::vector<std::unique_ptr<benchmarks::TrainedGpt>> models;
  for (const char* form : forms) models.push_back(trained(form));
  std::vector<std::vector<double>> times(models.size());
  std::vector<std::vector<double>> ratios(models.size());
  for (int round = 0; round < kRounds; ++round) {
    for (size_t i = 0; i < models.size(); ++i) {
      const auto begin = Clock::now();
      for (int n = 0; n < kSteps; ++n) step(*models[i]);
      const std::chrono::duration<double, std::micro> spent = Clock::now() - begin;
      times[i].push_back(spent.count() / kSteps);
      ratios[i].push_back(times[i].back() / times[0].back());
    }
  }
  for (size_t i = 0; i < models.size(); ++i) {
    std::printf("%-12s %8.0f us %8.3f\n", forms[i], median(times[i]), median(ratios[i]));
  }
}

}  // namespace

int main(int argc, char** argv) {
  at::set_num_threads(1);
  if (argc == 2 && std::string(argv[1]) == "count") return count();
  const auto forms = argc == 2 ? std::vector<const char*>{argv[1]}
                               : std::vector<const char*>(std::begin(kForms), std::end(kForms));
  compare(forms, [](benchmarks::TrainedGpt& model) { model.step(); });
  if (argc == 2) return 0;
  std::printf("backward on another thread:\n");
  Worker worker;
  compare(forms, [&](benchmarks::TrainedGpt& model) {
    const at::Tensor loss = model.forward();
    worker.run([&] { loss.backward(); });
    model.update();
  });
}
