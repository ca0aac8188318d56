// How the worlds of processes end when something is amiss: none waits for what cannot come.
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <thread>

#include "tessera/comm/failure.h"
#include "tessera/comm/processes.h"
#include "tessera/comm/world.h"
#include "tests/comm/process_links.h"
#include "tests/support/processes.h"

namespace tessera::comm {
namespace world_end_test {

using testing::error_of;
using testing::failures;
using testing::mark;
using testing::ProcessResult;
using testing::run_processes;
using testing::Scenario;

void say(const std::string& error) { mark("error: " + error); }

/// Longer than a test may take: whatever waits for it fails the test.
const std::map<std::string, std::string> kEndless = {{"TESSERA_TIMEOUT_S", "600"}};

/// Stops this process; a child of it lets it go on when the process `pid` has ended.
void stop_until_end_of(pid_t pid) {
  const pid_t stopped = getpid();
  if (fork() == 0) {
    while (kill(stopped, 0) == 0 && kill(pid, 0) == 0) usleep(50'000);
    kill(stopped, SIGKILL);
    _exit(0);
  }
  std::raise(SIGSTOP);
}

/// Its error says that the store does not answer; then it must not wait for that store either.
const Scenario kHostStops("host_stops", [] {
  auto world = process_world();
  const c10::intrusive_ptr<c10d::Store> store = own_store(/*host=*/false);
  all_reduce(*world);
  if (world->rank() == 0) stop_until_end_of(std::stoi(store->get_to_str("pid")));
  store->set("pid", std::to_string(getpid()));
  if (std::getenv("SILENT") == nullptr) say(error_of([&] { all_reduce(*world); }));
});

TEST(WorldEnd, DoesNotWaitForAStoreWhoseHostIsStopped) {
  for (const char* silent : {"", "1"}) {
    std::map<std::string, std::string> environment = {{"TESSERA_TIMEOUT_S", "2"}};
    if (*silent != '\0') environment["SILENT"] = silent;
    const auto results = run_processes(kHostStops, {.size = 2, .environment = environment});
    EXPECT_TRUE(results[1].ok()) << results[1].to_text();
    if (*silent != '\0') continue;
    EXPECT_TRUE(results[1].says("the store does not answer")) << results[1].to_text();
  }
}

/// Asynchronous calls that no thread waits for, and that do not match.
const Scenario kForgotten("forgotten", [] {
  auto world = process_world();
  all_reduce(*world);
  Tensors t = {at::ones({3 + world->rank()})};
  links_of(*world).allreduce(t);
});

TEST(WorldEnd, DoesNotWaitForCallsThatNobodyWaitsFor) {
  EXPECT_EQ(failures(run_processes(kForgotten, {.size = 2, .environment = kEndless})), "");
}

/// Rank 2 cannot go on and leaves; the others know nothing of it yet.
const Scenario kLeaves("leaves", [] {
  auto world = process_world();
  if (world->rank() == 2) return close_links(*world);
  say(error_of([&] { world->group(everyone(*world)); }));
});

TEST(WorldEnd, ARankThatLeftIsNotWaitedForInANewGroup) {
  const auto results = run_processes(kLeaves, {.size = 3, .environment = kEndless});
  for (const ProcessResult& result : results) {
    EXPECT_TRUE(result.ok()) << result.to_text();
    if (result.rank == 2) continue;
    EXPECT_TRUE(result.says("rank 2 left the world")) << result.to_text();
  }
}

/// Rank 1 does not answer for a while: longer than one probe takes.
const Scenario kSleeps("sleeps", [] {
  auto world = process_world();
  all_reduce(*world);
  if (world->rank() == 0) return report_failure("the disk is full");
  const pid_t stopped = getpid();
  if (fork() == 0) {
    usleep(3'500'000);
    kill(stopped, SIGCONT);
    _exit(0);
  }
  std::raise(SIGSTOP);
  say(error_of([&] { all_reduce(*world); }));
});

TEST(WorldEnd, AStoreOutlastsARankThatAnswersLate) {
  const auto results = run_processes(kSleeps, {.size = 2, .environment = kEndless});
  EXPECT_TRUE(results[1].says("rank 0 failed first: the disk is full")) << results[1].to_text();
}

/// As programs do that catch their own exceptions in main: here run_processes does.
const Scenario kExits("exits", [] {
  auto world = process_world();
  all_reduce(*world);
  if (world->rank() == 1) throw std::runtime_error("for the log of rank 1 alone");
  say(error_of([&] { all_reduce(*world); }));
});

TEST(WorldEnd, AnExitWithAnErrorReachesTheOthers) {
  const auto results = run_processes(kExits, {.size = 2, .environment = kEndless});
  EXPECT_EQ(results[1].exit_code, 1) << results[1].to_text();
  EXPECT_TRUE(results[0].says("rank 1 failed first: it exited with status 1"))
      << results[0].to_text();
}

}  // namespace world_end_test
}  // namespace tessera::comm
