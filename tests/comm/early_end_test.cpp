// Processes that end in the middle: by an exception, by exit, as children of a rank.
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdlib>
#include <thread>

#include "tessera/base/errors.h"
#include "tessera/comm/processes.h"
#include "tessera/comm/world.h"
#include "tests/comm/process_links.h"
#include "tests/support/processes.h"

namespace tessera::comm {
namespace early_end_test {

using testing::error_of;
using testing::failures;
using testing::mark;
using testing::ProcessResult;
using testing::run_processes;
using testing::Scenario;
using Clock = std::chrono::steady_clock;
using namespace std::chrono_literals;

/// No exception is caught: each process ends by std::terminate, the first one too.
const Scenario kUncaught("uncaught_everywhere", [] {
  auto world = process_world();
  all_reduce(*world);
  const bool fails = world->rank() == std::atoi(std::getenv("FAILS"));
  std::thread([&] {
    if (fails) throw InvalidArgument("no such file: weights.bin");
    all_reduce(*world);
  }).join();
});

TEST(EarlyEnd, TheFirstExceptionIsNamedByAllAlsoIfTheStoreEndsWithIt) {
  for (const int fails : {0, 1}) {
    const auto results =
        run_processes(kUncaught, {.size = 4, .environment = {{"FAILS", std::to_string(fails)}}});
    for (const ProcessResult& result : results) {
      EXPECT_EQ(result.signal, SIGABRT) << result.to_text();
      EXPECT_TRUE(result.says("no such file: weights.bin")) << result.to_text();
      if (result.rank == fails) continue;
      EXPECT_TRUE(result.says("rank " + std::to_string(fails) + " failed first"))
          << result.to_text();
    }
  }
}

const Scenario kExits("exits", [] {
  auto world = process_world();
  c10d::AllreduceOptions synchronous;
  synchronous.asyncOp = false;
  Tensors t = {at::ones({3})};
  links_of(*world).allreduce(t, synchronous)->wait();
  if (world->rank() == std::atoi(std::getenv("LEAVES"))) std::exit(0);
  const auto begin = Clock::now();
  mark("error: " + error_of([&] { links_of(*world).allreduce(t, synchronous)->wait(); }));
  mark(Clock::now() - begin < 8s ? "in time" : "too late");
});

TEST(EarlyEnd, ARankThatExitsInTheMiddleEndsTheCallOfTheOthers) {
  for (const char* leaves : {"0", "1"}) {
    const auto results = run_processes(kExits, {.size = 3, .environment = {{"LEAVES", leaves}}});
    for (const ProcessResult& result : results) {
      EXPECT_TRUE(result.ok()) << result.to_text();
      if (result.rank == std::atoi(leaves)) continue;
      EXPECT_TRUE(result.says("in time")) << result.to_text();
      EXPECT_TRUE(result.says(std::string("rank ") + leaves + " ended")) << result.to_text();
    }
  }
}

/// The child runs the exit handlers and static destructors of a rank, but is none, and its messages
/// would be taken for the rank's.
const Scenario kForks("forks", [] {
  auto world = process_world();
  all_reduce(*world);
  const auto communicates = [&] { return error_of([&] { all_reduce(*world); }); };
  for (const int status : {0, 3}) {
    const pid_t child = fork();
    if (child == 0) {
      alarm(10 * static_cast<unsigned>(testing::slowdown()));
      const bool refused = communicates().find("forked from the rank") != std::string::npos;
      std::exit(refused ? status : 77);
    }
    int ended = 0;
    ASSERT_EQ(waitpid(child, &ended, 0), child);
    EXPECT_TRUE(WIFEXITED(ended) && WEXITSTATUS(ended) == status) << ended;
    all_reduce(*world);
  }
  all_reduce(*world);
});

TEST(EarlyEnd, AForkedProcessThatExitsSaysNothingInItsParentsName) {
  const auto results = run_processes(kForks, {.size = 2});
  EXPECT_EQ(failures(results), "");
  for (const ProcessResult& result : results)
    EXPECT_LT(result.elapsed, 20s * testing::slowdown()) << result.to_text();
}

}  // namespace early_end_test
}  // namespace tessera::comm
