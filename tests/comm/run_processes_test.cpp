// The tests' own tool: a process that does not end in time is killed, and shows where it stood.
#include <gtest/gtest.h>
#include <signal.h>

#include <chrono>
#include <thread>

#include "tests/support/processes.h"

namespace tessera::testing {
namespace run_processes_test {

const Scenario kStaysOn("stays on", [] { std::this_thread::sleep_for(std::chrono::minutes(5)); });

TEST(RunProcesses, WhoDoesNotEndInTimeIsKilledAndShowsItsStacks) {
  const auto results =
      run_processes(kStaysOn, {.size = 1, .deadline = std::chrono::milliseconds(1500)});
  ASSERT_EQ(results.size(), 1);
  EXPECT_TRUE(results[0].timed_out);
  EXPECT_EQ(results[0].signal, SIGKILL);
  EXPECT_TRUE(results[0].says("[stack of thread ")) << results[0].to_text();
  EXPECT_TRUE(results[0].says("nanosleep")) << results[0].to_text();
}

}  // namespace run_processes_test
}  // namespace tessera::testing
