#include "tests/support/processes.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <poll.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <iostream>
#include <sstream>
#include <stdexcept>

#include "tessera/base/errors.h"
#include "tests/support/fork_server.h"
#include "tests/support/hosts.h"
#include "tests/support/ranks.h"
#include "tests/support/stacks.h"
#include "tests/support_pure/tests_of_file.h"

extern char** environ;

namespace tessera::testing {
namespace {

using Clock = std::chrono::steady_clock;

constexpr const char* kScenarioVariable = "TESSERA_TEST_SCENARIO";
constexpr std::string_view kMark = "[mark] ";

std::map<std::string, std::function<void()>>& scenarios() {
  static std::map<std::string, std::function<void()>> all;
  return all;
}

void check(bool ok, const std::string& what) {
  if (!ok) throw std::runtime_error(what + ": " + std::strerror(errno));
}

/// Whether this machine's loopback has nothing on the port.
bool is_free(int port) {
  const int fd = socket(AF_INET, SOCK_STREAM, 0);
  check(fd >= 0, "socket");
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  address.sin_port = htons(static_cast<uint16_t>(port));
  const bool bound = bind(fd, reinterpret_cast<sockaddr*>(&address), sizeof(address)) == 0;
  close(fd);
  return bound;
}

/// A port that was free at the time of the call. Below the ports that the kernel gives to outgoing
/// connections, which could take it before a rank listens; programs that run side by side begin to
/// look at different places.
int free_port() {
  constexpr int kFirst = 10'000;
  constexpr int kCount = 20'000;
  static std::atomic<int> asked = 0;
  for (int tries = 0; tries < kCount; ++tries) {
    const int port = kFirst + static_cast<int>((int64_t{getpid()} * 61 + asked++) % kCount);
    if (is_free(port)) return port;
  }
  throw std::runtime_error("no free port");
}

struct Child {
  ProcessResult result;
  pid_t pid = -1;
  int pipe = -1;     // -1: closed at end of file
  size_t heard = 0;  // output processed by on_mark so far
  bool reaped = false;
};

std::vector<std::string> environment_of(const Scenario& scenario, const RunOptions& options,
                                        int rank, int port) {
  std::map<std::string, std::string> values;
  for (char** at = environ; *at != nullptr; ++at) {
    const std::string entry(*at);
    const size_t equals = entry.find('=');
    if (equals != std::string::npos) values[entry.substr(0, equals)] = entry.substr(equals + 1);
  }
  values[kScenarioVariable] = scenario.name();
  values["RANK"] = values["LOCAL_RANK"] = std::to_string(rank);
  values["WORLD_SIZE"] = std::to_string(options.size);
  values["MASTER_ADDR"] = "127.0.0.1";
  values["MASTER_PORT"] = std::to_string(port);
  values["OMP_NUM_THREADS"] = "1";
  values["RES_OPTIONS"] = "timeout:1 attempts:1";  // the store resolves names; limits the wait
  for (const auto& [name, value] : options.environment) values[name] = value;
  if (options.environment_of) {
    for (const auto& [name, value] : options.environment_of(rank)) values[name] = value;
  }
  std::vector<std::string> entries;
  for (const auto& [name, value] : values) entries.push_back(name + "=" + value);
  return entries;
}

Child start(const Scenario& scenario, const RunOptions& options, int rank, int port) {
  std::array<int, 2> ends{};
  check(pipe2(ends.data(), O_CLOEXEC) == 0, "pipe");
  Child child;
  child.result.rank = rank;
  child.pid = fork_from_server(environment_of(scenario, options, rank, port), ends[1]);
  close(ends[1]);
  child.pipe = ends[0];
  fcntl(child.pipe, F_SETFL, O_NONBLOCK);
  return child;
}

/// Reads available output; closes the pipe at its end.
void read_output(Child& child) {
  std::array<char, 4096> buffer;
  for (;;) {
    const ssize_t n = read(child.pipe, buffer.data(), buffer.size());
    if (n > 0) {
      child.result.output.append(buffer.data(), static_cast<size_t>(n));
      continue;
    }
    if (n == 0 || (errno != EAGAIN && errno != EINTR)) {
      close(child.pipe);
      child.pipe = -1;
    }
    return;
  }
}

/// Calls on_mark for new lines.
void process_marks(Child& child, const RunOptions& options) {
  if (!options.on_mark) return;
  const std::string& output = child.result.output;
  for (size_t end = 0; (end = output.find('\n', child.heard)) != std::string::npos;) {
    const std::string line = output.substr(child.heard, end - child.heard);
    child.heard = end + 1;
    if (line.starts_with(kMark)) options.on_mark(child.result.rank, line.substr(kMark.size()));
  }
}

void reap(Child& child, Clock::time_point begin, int flags) {
  int status = 0;
  if (child.reaped || waitpid(child.pid, &status, flags) != child.pid) return;
  child.reaped = true;
  child.result.elapsed =
      std::chrono::duration_cast<std::chrono::milliseconds>(Clock::now() - begin);
  child.result.exit_code = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  child.result.signal = WIFSIGNALED(status) ? WTERMSIG(status) : 0;
}

void wait_for_output(const std::vector<Child>& children) {
  std::vector<pollfd> polled;
  for (const Child& child : children) {
    if (child.pipe >= 0) polled.push_back({child.pipe, POLLIN, 0});
  }
  poll(polled.data(), polled.size(), 20);  // the timeout also paces the check for ended processes
}

/// In a process that was started for it.
int run_rank() {
  const std::string name = std::getenv(kScenarioVariable);
  const auto found = scenarios().find(name);
  if (found == scenarios().end()) {
    std::cerr << "no scenario is called " << name << std::endl;
    return 2;
  }
  try {
    enter_host();
    answer_with_stacks();
    found->second();
  } catch (const std::exception& e) {
    std::cout << "[error] " << e.what() << std::endl;
    return 1;
  }
  return ::testing::UnitTest::GetInstance()->Failed() ? 1 : 0;
}

}  // namespace

int slowdown() {
  const char* given = std::getenv("TESSERA_TEST_SLOWDOWN");
  return given != nullptr ? std::max(1, std::atoi(given)) : 1;
}

Scenario::Scenario(std::string name, std::function<void()> body, std::source_location where)
    : name_(std::string(where.file_name()) + ": " + name) {
  scenarios()[name_] = std::move(body);
}

std::string ProcessResult::to_text() const {
  std::ostringstream out;
  out << "rank " << rank << ": ";
  if (timed_out) {
    out << "still ran at the deadline";
  } else if (signal != 0) {
    out << "signal " << signal;
  } else {
    out << "exit " << exit_code;
  }
  out << " after " << elapsed.count() << " ms\n" << output;
  if (!output.empty() && output.back() != '\n') out << '\n';
  return out.str();
}

std::vector<ProcessResult> run_processes(const Scenario& scenario, const RunOptions& options) {
  if (test::ranks_are_processes()) {
    std::cout << "[processes] left out: " << scenario.name() << std::endl;
    return {};
  }
  const int port = free_port();
  const auto begin = Clock::now();
  std::vector<Child> children;
  for (int rank = 0; rank < options.size; ++rank) {
    const auto& absent = options.absent;
    if (std::find(absent.begin(), absent.end(), rank) != absent.end()) continue;
    children.push_back(start(scenario, options, rank, port));
  }
  const auto deadline = options.deadline * slowdown();
  const std::string kill_line = std::string(kMark) + options.kill_mark + "\n";
  const auto running = [](const Child& child) { return !child.reaped || child.pipe >= 0; };
  while (std::any_of(children.begin(), children.end(), running)) {
    wait_for_output(children);
    const bool late = Clock::now() - begin > deadline;
    for (Child& child : children) {
      if (child.pipe >= 0) read_output(child);
      process_marks(child, options);
      reap(child, begin, WNOHANG);
      if (child.reaped) continue;
      const bool marked = options.kill_rank == child.result.rank && child.result.says(kill_line);
      if (late) {
        child.result.timed_out = true;
        ask_for_stacks(child.pid);
        if (child.pipe >= 0) read_output(child);
      }
      if (marked || late) {
        kill(child.pid, SIGKILL);
        reap(child, begin, 0);
      }
    }
  }
  std::vector<ProcessResult> results;
  for (Child& child : children) results.push_back(std::move(child.result));
  return results;
}

std::string failures(const std::vector<ProcessResult>& results) {
  const auto ok = [](const ProcessResult& result) { return result.ok(); };
  if (std::all_of(results.begin(), results.end(), ok)) return {};
  std::string out;
  for (const auto& result : results) out += result.to_text();
  return out;
}

void mark(std::string_view text) {
  std::cout << (std::string(kMark) + std::string(text) + "\n") << std::flush;
}

std::string error_of(const std::function<void()>& body) {
  try {
    body();
  } catch (const PeerError& e) {
    return std::string("PeerError: ") + e.what();
  } catch (const InvalidArgument& e) {
    return std::string("InvalidArgument: ") + e.what();
  } catch (const NotSupported& e) {
    return std::string("NotSupported: ") + e.what();
  } catch (const std::exception& e) {
    return std::string("other: ") + e.what();
  }
  return {};
}

int test_main(int argc, char** argv) {
  ::testing::InitGoogleTest(&argc, argv);
  if (!test::take_file_flag(argc, argv)) return 2;
  if (std::getenv(kScenarioVariable) != nullptr) return run_rank();  // by `tessera launch`
  begin_fork_server(run_rank);
  const int processes = test::processes_asked_for();
  return processes > 0 ? test::run_tests_on_processes(processes) : RUN_ALL_TESTS();
}

}  // namespace tessera::testing
