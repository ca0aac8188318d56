// How ranks meet: within the timeout whatever the store's host does, only those of one job, and
// with an error that says what is wrong with the environment.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <future>
#include <sstream>
#include <thread>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>

#include "tessera/base/errors.h"
#include "tessera/comm/processes.h"
#include "tessera/comm/world.h"
#include "tessera/liveness/peer_diagnostics.h"
#include "tessera/liveness/store_barrier.h"
#include "tessera/transport/sockets.h"
#include "tests/comm/process_links.h"
#include "tests/support/processes.h"

namespace tessera::comm {
namespace start_test {

using testing::error_of;
using testing::failures;
using testing::mark;
using testing::ProcessResult;
using testing::run_processes;
using testing::Scenario;
using Clock = std::chrono::steady_clock;
using Environment = std::map<std::string, std::string>;
using namespace std::chrono_literals;

int rank_here() { return std::atoi(std::getenv("RANK")); }

/// Says how it failed, and whether that took longer than it may with a timeout of two seconds. The
/// rest is for a busy machine.
void say_in_time(const std::function<void()>& body) {
  const auto begin = Clock::now();
  const std::string error = error_of(body);
  const auto took = std::chrono::duration_cast<std::chrono::milliseconds>(Clock::now() - begin);
  mark("error: " + error);
  mark(took < 12s ? "in time" : "too late");
  if (took < 5s) mark("without delay");
  mark("after " + std::to_string(took.count()) + " ms");
}

/// A file through which a process that is about to stop says who it is.
std::string pid_file() { return std::getenv("PID_FILE"); }

void stop_here() {
  std::ofstream(pid_file() + ".part") << getpid() << std::endl;
  std::filesystem::rename(pid_file() + ".part", pid_file());
  std::raise(SIGSTOP);
}

void end_stopped() {
  int pid = 0;
  if (std::ifstream(pid_file()) >> pid) kill(pid, SIGKILL);
}

void wait_for_file(const std::string& file) {
  while (!std::filesystem::exists(file)) std::this_thread::sleep_for(10ms);
}

void wait_until_stopped() {
  wait_for_file(pid_file());
  std::this_thread::sleep_for(100ms);
}

/// A file through which the other process says that its world is complete.
std::string world_file() { return pid_file() + ".world"; }

std::vector<ProcessResult> run_with_stopped(const Scenario& scenario) {
  const std::string file =
      std::filesystem::temp_directory_path() / ("tessera_start_" + std::to_string(getpid()));
  for (const char* end : {"", ".world"}) std::filesystem::remove(file + end);
  auto results =
      run_processes(scenario, {.size = 2,
                               .deadline = 40s,
                               .environment = {{"TESSERA_TIMEOUT_S", "2"}, {"PID_FILE", file}}});
  for (const char* end : {"", ".world"}) std::filesystem::remove(file + end);
  return results;
}

const Scenario kStoppedStore("stopped_store", [] {
  if (rank_here() == 0) {
    const auto store = own_store(/*host=*/true);
    return stop_here();
  }
  wait_until_stopped();
  say_in_time([] { process_world(); });
  end_stopped();
});

TEST(Start, AStoreWhoseHostIsStoppedEndsTheStartAtTheTimeout) {
  const auto results = run_with_stopped(kStoppedStore);
  EXPECT_TRUE(results[1].says("in time")) << results[1].to_text();
  EXPECT_TRUE(results[1].says("did not answer within 2000 ms; the port is open"))
      << results[1].to_text();
}

const Scenario kStoppedHost("stopped_host", [] {
  auto world = process_world();
  if (rank_here() == 0) {
    wait_for_file(world_file());  // rank 1 needs the store until then
    return stop_here();
  }
  std::ofstream(world_file()).flush();
  wait_until_stopped();
  say_in_time([&] { init_device_mesh("dp=2", world); });
  end_stopped();
});

TEST(Start, AHostThatIsStoppedBeforeTheMeshEndsItAtTheTimeout) {
  const auto results = run_with_stopped(kStoppedHost);
  EXPECT_TRUE(results[1].says("in time")) << results[1].to_text();
  EXPECT_TRUE(results[1].says("PeerError: rank 1: making group")) << results[1].to_text();
  EXPECT_TRUE(results[1].says("the store did not answer within")) << results[1].to_text();
}

/// Rank 1 ends when all ranks have come to make the group, before it says where it listens.
const Scenario kGoneBeforeLinks("gone_before_links", [] {
  auto world = process_world();
  if (world->rank() == 1) {
    const auto ranks = everyone(*world);
    const auto store =
        c10::make_intrusive<c10d::PrefixStore>("tessera//procs/0", own_store(/*host=*/false));
    const auto board = c10::make_intrusive<c10d::PrefixStore>(PeerDiagnostics::kPrefix, store);
    StoreBarrier{*store, "group/procs.g[0,1]", "making the group", ranks, 1, 20s, *board}
        .arrive_and_wait("");
    kill(getpid(), SIGKILL);
  }
  say_in_time([&] { links_of(*world); });
});

TEST(Start, ARankThatEndsBeforeItsLinksAreOpenIsNamed) {
  const auto results =
      run_processes(kGoneBeforeLinks, {.size = 2, .environment = {{"TESSERA_TIMEOUT_S", "2"}}});
  EXPECT_TRUE(results[0].says("in time")) << results[0].to_text();
  EXPECT_TRUE(results[0].says("no sign of life from rank 1")) << results[0].to_text();
  EXPECT_FALSE(results[0].says("frame #")) << results[0].to_text();
}

/// The port belongs to a program that takes connections and says nothing.
const Scenario kSilentListener("silent_listener", [] {
  const Socket listener(socket(AF_INET, SOCK_STREAM, 0));
  sockaddr_in at{};
  at.sin_family = AF_INET;
  at.sin_port = htons(static_cast<uint16_t>(std::atoi(std::getenv("MASTER_PORT"))));
  at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  ASSERT_EQ(bind(listener.fd(), reinterpret_cast<sockaddr*>(&at), sizeof(at)), 0);
  ASSERT_EQ(listen(listener.fd(), 8), 0);
  say_in_time([] { process_world(); });
});

TEST(Start, APortOfAnotherProgramEndsTheStartAtTheTimeout) {
  const auto results = run_processes(
      kSilentListener, {.size = 2, .absent = {0}, .environment = {{"TESSERA_TIMEOUT_S", "2"}}});
  EXPECT_TRUE(results[0].says("in time")) << results[0].to_text();
  EXPECT_TRUE(results[0].says("the port is open")) << results[0].to_text();
}

const Scenario kStart("start", [] { say_in_time([] { process_world(); }); });

TEST(Start, ARankZeroThatNeverComesCostsTheTimeoutAndNoMore) {
  const auto results = run_processes(
      kStart, {.size = 2, .absent = {0}, .environment = {{"TESSERA_TIMEOUT_S", "2"}}});
  EXPECT_TRUE(results[0].says("without delay")) << results[0].to_text();
  EXPECT_TRUE(results[0].says("did not answer within 2000 ms")) << results[0].to_text();
  EXPECT_FALSE(results[0].says("the port is open")) << results[0].to_text();
}

/// Adds up the jobs' numbers, so that a rank of another job shows.
const Scenario kJob("job", [] {
  auto world = process_world();
  const double job = std::stod(std::getenv("JOB"));
  Tensors sum = {at::full({1}, job)};
  for (int i = 0; i < 20; ++i) {
    sum = {at::full({1}, job)};
    links_of(*world).allreduce(sum)->wait();
  }
  EXPECT_EQ(sum[0].item<double>(), job * world->size());
  std::this_thread::sleep_for(1s);
});

/// A port that two jobs are given.
std::string some_port() {
  const Socket probe(socket(AF_INET, SOCK_STREAM, 0));
  sockaddr_in at{};
  at.sin_family = AF_INET;
  at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof(at);
  EXPECT_EQ(bind(probe.fd(), reinterpret_cast<sockaddr*>(&at), size), 0);
  EXPECT_EQ(getsockname(probe.fd(), reinterpret_cast<sockaddr*>(&at), &size), 0);
  return std::to_string(ntohs(at.sin_port));
}

TEST(Start, TwoJobsOnOnePortDoNotBecomeOneWorld) {
  for (const char* name : {"TESSERA_JOB_SECRET", "TORCHELASTIC_RUN_ID"}) {
    const std::string port = some_port();
    const auto run = [&](const char* job) {
      const Environment environment = {
          {"MASTER_PORT", port}, {"JOB", job}, {name, job}, {"TESSERA_TIMEOUT_S", "8"}};
      return run_processes(kJob, {.size = 2, .environment = environment});
    };
    auto other = std::async(std::launch::async, [&] { return run("10"); });
    const std::vector<std::vector<ProcessResult>> jobs = {run("1"), other.get()};
    int ran = 0;
    for (const auto& ranks : jobs) {
      EXPECT_EQ(ranks[0].ok(), ranks[1].ok()) << ranks[0].to_text() << ranks[1].to_text();
      ran += ranks[0].ok() ? 1 : 0;
      if (ranks[0].ok()) continue;
      EXPECT_TRUE(ranks[0].says("cannot make the store") || ranks[0].says("another job"))
          << ranks[0].to_text();
      EXPECT_TRUE(ranks[1].says("the store of another job") || ranks[1].says("did not answer"))
          << ranks[1].to_text();
    }
    EXPECT_GE(ran, 1);
  }
}

/// WRONG=1 in the environment of all, but only rank 1 (of 3) has another value.
const Scenario kWrongVariable("wrong_variable", [] {
  if (rank_here() == 1) setenv(std::getenv("NAME"), std::getenv("VALUE"), 1);
  say_in_time([] { process_world(); });
});

std::vector<ProcessResult> run_wrong(const char* name, const char* value) {
  return run_processes(
      kWrongVariable,
      {.size = 3, .environment = {{"NAME", name}, {"VALUE", value}, {"TESSERA_TIMEOUT_S", "12"}}});
}

TEST(Start, AWorldSizeThatDiffersIsNamedOnEveryRank) {
  const auto results = run_wrong("WORLD_SIZE", "2");
  for (const ProcessResult& result : results) {
    EXPECT_TRUE(result.says("WORLD_SIZE is 2 on rank 1 but 3 on rank 0")) << result.to_text();
    EXPECT_FALSE(result.says("did not arrive")) << result.to_text();
  }
}

TEST(Start, ARankThatIsGivenTwiceIsNamedOnEveryRank) {
  const auto results = run_wrong("RANK", "2");
  for (const ProcessResult& result : results) {
    EXPECT_TRUE(result.says("RANK=2 was given to two processes")) << result.to_text();
  }
}

/// Rank 2 may open MORE files than it has open at the start.
const Scenario kFewDescriptors("few_descriptors", [] {
  if (rank_here() == 2) {
    int highest = 1023;
    while (fcntl(highest, F_GETFD) < 0) --highest;
    const Socket first_beyond([&] {  // those below it that are free are taken first
      int next = dup(STDOUT_FILENO);
      while (next >= 0 && next < highest) next = dup(STDOUT_FILENO);
      return next;
    }());
    const auto limit =
        rlim_t(std::max(highest, first_beyond.fd()) + std::atoi(std::getenv("MORE")));
    const rlimit few{limit, 4096};
    ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &few), 0);
  }
  say_in_time([] {
    auto world = process_world();
    links_of(*world);
  });
});

TEST(Start, TooFewDescriptorsAreNamed) {
  for (const char* more : {"3", "16"}) {
    const auto results = run_processes(
        kFewDescriptors, {.size = 3, .environment = {{"MORE", more}, {"TESSERA_TIMEOUT_S", "4"}}});
    EXPECT_TRUE(results[2].says("file descriptors")) << results[2].to_text();
    if (std::atoi(more) < 16) continue;  // it could not reach the others to say so
    for (const int rank : {0, 1}) {
      const ProcessResult& result = results[size_t(rank)];
      EXPECT_TRUE(result.says("rank 2 failed first") && result.says("file descriptors"))
          << more << " more files\n"
          << result.to_text();
    }
  }
}

/// Each thread makes its groups in an order of its own.
const Scenario kOppositeOrder("opposite_order", [] {
  auto world = process_world();
  const std::vector<std::vector<int>> groups = {{0, 1}, {1, 0}};
  const auto make = [&](const std::vector<int>& ranks) {
    Tensors t = {at::ones({2})};
    world->group(ranks)->backend(c10::DeviceType::CPU).allreduce(t)->wait();
    EXPECT_EQ(t[0][0].item<float>(), 2);
  };
  const bool first = world->rank() == 0;
  std::thread early([&] { make(groups[first ? 0 : 1]); });
  std::this_thread::sleep_for(300ms);
  make(groups[first ? 1 : 0]);
  early.join();
});

TEST(Start, ThreadsMayMakeGroupsInAnyOrder) {
  for (const char* checked : {"0", "1"}) {
    const auto results = run_processes(
        kOppositeOrder,
        {.size = 2,
         .environment = {{"TESSERA_CHECK_COLLECTIVES", checked}, {"TESSERA_TIMEOUT_S", "10"}}});
    EXPECT_EQ(failures(results), "");
  }
}

/// The local addresses, in hexadecimal digits, on which something listens at this port.
std::vector<std::string> listening_at(int port) {
  std::vector<std::string> found;
  for (const char* table : {"/proc/self/net/tcp", "/proc/self/net/tcp6"}) {
    std::ifstream file(table);
    std::string line;
    std::getline(file, line);
    while (std::getline(file, line)) {
      std::istringstream words(line);
      std::string number, local, remote, state;
      words >> number >> local >> remote >> state;
      const size_t colon = local.find(':');
      if (state == "0A" && std::stoi(local.substr(colon + 1), nullptr, 16) == port) {
        found.push_back(local.substr(0, colon));
      }
    }
  }
  return found;
}

const Scenario kListens("listens", [] {
  auto world = process_world();
  all_reduce(*world);
  const auto addresses = listening_at(std::atoi(std::getenv("MASTER_PORT")));
  EXPECT_EQ(addresses, std::vector<std::string>{"0100007F"});
});

TEST(Start, AJobOnOneMachineListensForThisMachineAlone) {
  for (const char* host : {"127.0.0.1", "localhost"}) {
    EXPECT_EQ(
        failures(run_processes(kListens, {.size = 2, .environment = {{"MASTER_ADDR", host}}})), "");
  }
}

/// A stranger on the same machine says how the start ended.
const Scenario kForged("forged", [] {
  if (rank_here() == 1) {
    const c10::intrusive_ptr<c10d::Store> store = own_store(/*host=*/false);
    store->set("tessera//procs/0/start/outcome", "7");
  }
  say_in_time([] { process_world(); });
});

TEST(Start, AStrangersWordIsNotTakenForARanks) {
  const auto results = run_processes(
      kForged,
      {.size = 2, .environment = {{"TESSERA_JOB_SECRET", "s"}, {"TESSERA_TIMEOUT_S", "5"}}});
  for (const ProcessResult& result : results) {
    EXPECT_FALSE(result.says("rank(s) 7")) << result.to_text();
    EXPECT_TRUE(result.says("was not written by a rank of this job")) << result.to_text();
  }
}

}  // namespace start_test
}  // namespace tessera::comm
