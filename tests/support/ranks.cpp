#include "tests/support/ranks.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Context.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <iostream>
#include <map>
#include <memory>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include "tessera/base/errors.h"
#include "tessera/comm/failure.h"
#include "tessera/comm/processes.h"
#include "tessera/comm/rank_generator.h"
#include "tessera/comm/world.h"
#include "tessera/threads/thread_failure.h"
#include "tests/support/processes.h"

namespace tessera::test {
namespace {

using comm::Failure;

constexpr const char* kCountVariable = "TESSERA_TEST_PROCESSES";
constexpr uint64_t kSeedOfDraws = 20'261;
constexpr auto kTimeout = std::chrono::seconds(60);
constexpr auto kDeadline = std::chrono::seconds(280);  // below that of ctest, which shows no stacks

int number(const char* variable) {
  const char* text = std::getenv(variable);
  return text != nullptr ? std::atoi(text) : 0;
}

/// Thread ranks have their own generators, with the process's seed.
class InitialSeeds {
 public:
  InitialSeeds() : kept_(comm::default_generator().clone()) {
    comm::manual_seed(comm::process_seed());
  }
  ~InitialSeeds() {
    auto generator = comm::default_generator();
    std::lock_guard lock(generator.mutex());
    generator.set_state(kept_.get_state());
  }
  InitialSeeds(const InitialSeeds&) = delete;
  InitialSeeds& operator=(const InitialSeeds&) = delete;

 private:
  at::Generator kept_;
};

/// This process among those of the test program.
class ProcessRanks {
 public:
  ProcessRanks() : rank_(number("RANK")), count_(number("WORLD_SIZE")) {
    c10d::TCPStoreOptions options;
    options.port = static_cast<uint16_t>(number("MASTER_PORT"));
    options.isServer = rank_ == 0;
    options.waitWorkers = false;
    options.timeout = kTimeout;
    store_ = c10::make_intrusive<c10d::TCPStore>("127.0.0.1", options);
  }

  int count() const { return count_; }

  void run(int n, const std::function<void(int)>& fn) {
    if (n == 1) return run_alone(fn);
    const std::string call = join_text("call", calls_++, ".");
    if (rank_ < n) store_->set(call + std::to_string(rank_), outcome(n, fn));
    int failed = -1;
    Failure failure;
    for (int rank = 0; rank < n; ++rank) {
      const std::string said = store_->get_to_str(call + std::to_string(rank));
      if (said.empty()) continue;
      const auto kind = static_cast<Failure::Kind>(said[0] - '0');
      // Of several failures, the cause rather than its consequences.
      if (failed >= 0 && (failure.kind != Failure::Kind::peer || kind == Failure::Kind::peer)) {
        continue;
      }
      failed = rank;
      failure = {kind, join_text("rank ", rank, ": ", said.substr(1))};
    }
    if (failed < 0) return;
    worlds_.erase(n);
    failure.raise();
  }

  /// Runs a world of one rank in each process.
  void run_alone(const std::function<void(int)>& fn) {
    auto& world = worlds_[1];
    if (world == nullptr) world = comm::make_process_world({.name = "alone"});
    const comm::WorldGuard guard(world);
    const InitialSeeds random;
    fn(0);
  }

  /// Ends the worlds while all processes are still running.
  void end() { worlds_.clear(); }

  /// Rank 0 hosts the store, so it exits last: processes that took part in no call may still be
  /// connecting when the others are done.
  void wait_for_others() {
    store_->set(join_text("done.", rank_), "1");
    if (rank_ != 0) return;
    for (int rank = 1; rank < count_; ++rank) store_->get(join_text("done.", rank));
  }

 private:
  /// "" or the kind and text of the error.
  std::string outcome(int n, const std::function<void(int)>& fn) {
    try {
      auto& world = worlds_[n];
      if (world == nullptr) world = make_world(n);
      const comm::WorldGuard guard(world);
      const InitialSeeds random;
      comm::or_report(*world, [&] { fn(rank_); });
    } catch (...) {
      const Failure failure = Failure::of(std::current_exception());
      return std::to_string(static_cast<int>(failure.kind)) + failure.message;
    }
    return {};
  }

  std::shared_ptr<comm::RankWorld> make_world(int n) {
    const std::string name = join_text("test", n, ".", made_[n]++);
    comm::ProcessWorldOptions options;
    options.rank = rank_;
    options.size = n;
    options.local_rank = rank_;
    options.store = c10::make_intrusive<c10d::PrefixStore>(name, store_);
    options.name = name;
    options.timeout = kTimeout;
    return comm::make_process_world(std::move(options));
  }

  int rank_;
  int count_;
  int calls_ = 0;
  c10::intrusive_ptr<c10d::Store> store_;
  std::map<int, std::shared_ptr<comm::RankWorld>> worlds_;
  std::map<int, int> made_;
};

std::unique_ptr<ProcessRanks>& process_ranks() {
  static std::unique_ptr<ProcessRanks> ranks;
  return ranks;
}

const testing::Scenario kAllTests("all tests of the program", [] {
  process_ranks() = std::make_unique<ProcessRanks>();
  at::manual_seed(
      kSeedOfDraws);  // what a test draws before its ranks run is equal in all processes
  const int failed = RUN_ALL_TESTS();
  if (failed == 0) process_ranks()->end();
  process_ranks()->wait_for_others();
});

}  // namespace

bool ranks_are_processes() { return process_ranks() != nullptr; }

void run_ranks(int n, const std::function<void(int rank)>& fn,
               const comm::RunRanksOptions& options) {
  if (!ranks_are_processes()) return comm::run_ranks(n, fn, options);
  if (n > process_ranks()->count()) {
    std::cout << "[processes] left out: " << n << " ranks" << std::endl;
    return;
  }
  process_ranks()->run(n, fn);
}

int processes_asked_for() { return number(kCountVariable); }

int run_tests_on_processes(int count) {
  testing::RunOptions options;
  options.size = count;
  options.deadline = kDeadline;
  options.environment = {{"GTEST_FILTER", GTEST_FLAG_GET(filter)}};
  const auto results = testing::run_processes(kAllTests, options);
  std::cout << (testing::failures(results).empty() ? results[0].to_text()
                                                   : testing::failures(results));
  return testing::failures(results).empty() ? 0 : 1;
}

}  // namespace tessera::test
