#pragma once

#include <functional>

#include "tessera/comm/threads.h"

/// The ranks of a test: threads of the test program, or real processes.
///
///   TEST(Sum, IsTheSameOnAllRanks) {
///     test::run_ranks(2, [](int) { auto mesh = comm::init_device_mesh("tp=2"); ... });
///   }
///
///   build/tests/test_dtensor_ops                             threads
///   TESSERA_TEST_PROCESSES=4 build/tests/test_dtensor_ops    four processes
///
/// With TESSERA_TEST_PROCESSES the program starts itself that many times. Each process runs all
/// tests. run_ranks(n, fn) calls fn in the first n, in a world of n processes that is kept for
/// later tests, and waits for them; run_ranks(1, fn) calls it in every process. So a body may use
/// what the test computed before, but sees only its own rank's writes to captured variables: a test
/// that compares such writes afterwards must use threads (`if (test::ranks_are_processes())
/// GTEST_SKIP() << "why"`).
namespace tessera::test {

/// comm::run_ranks, or its equivalent on processes: errors arrive on every process as one of the
/// same kind, "rank 1: ...", and random numbers start as on thread ranks. Runs nothing if there are
/// fewer than n processes.
void run_ranks(int n, const std::function<void(int rank)>& fn,
               const comm::RunRanksOptions& options = {});

bool ranks_are_processes();

/// main() of the test program if TESSERA_TEST_PROCESSES is set: starts the processes and returns
/// the exit code.
int run_tests_on_processes(int count);

/// The number of processes that main() should start; 0: none.
int processes_asked_for();

}  // namespace tessera::test
