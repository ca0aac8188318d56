#pragma once

#include <chrono>
#include <functional>
#include <map>
#include <optional>
#include <source_location>
#include <string>
#include <string_view>
#include <vector>

/// Tests with real processes. What a process does is a scenario, registered by a global object of
/// the test file. The test starts a fork of this program for each rank (fork_server.h), with the
/// launcher's variables set (RANK, WORLD_SIZE, MASTER_ADDR, ...), and inspects how each one ended:
///
///   const Scenario kRing("ring", [] {
///     auto world = comm::process_world();
///     ...
///     EXPECT_EQ(sum, 3);                        // gtest's checks work here too
///   });
///
///   TEST(Ring, Works) { EXPECT_EQ(failures(run_processes(kRing, {.size = 3})), ""); }
///
/// In a rank, an exception that leaves the scenario, or a failed check, makes the process exit with
/// 1 and appears in its output.
namespace tessera::testing {

class Scenario {
 public:
  /// The name must be unique in its file.
  Scenario(std::string name, std::function<void()> body,
           std::source_location where = std::source_location::current());
  const std::string& name() const { return name_; }

 private:
  std::string name_;
};

/// The factor by which this program runs slower than usual: TESSERA_TEST_SLOWDOWN, which is set
/// under sanitizers, or 1.
int slowdown();

struct RunOptions {
  int size = 2;
  /// Processes that still run at the deadline are killed, and the test fails. Multiplied by
  /// slowdown().
  std::chrono::milliseconds deadline = std::chrono::seconds(60);
  std::vector<int> absent{};  ///< ranks that are not started
  /// Sends SIGKILL to this rank as soon as it calls `mark(kill_mark)`.
  std::optional<int> kill_rank{};
  std::string kill_mark = "kill me";
  std::map<std::string, std::string> environment{};  ///< added for every rank
  /// Added for each rank in addition.
  std::function<std::map<std::string, std::string>(int rank)> environment_of{};
  /// Called with each line that a rank printed by mark().
  std::function<void(int rank, std::string_view text)> on_mark{};
};

struct ProcessResult {
  int rank = 0;
  int exit_code = 0;  ///< -1 if it did not exit by itself
  int signal = 0;
  bool timed_out = false;  ///< killed at the deadline
  std::chrono::milliseconds elapsed{0};
  std::string output;  ///< stdout and stderr

  bool ok() const { return exit_code == 0; }
  bool says(std::string_view text) const { return output.find(text) != std::string::npos; }
  std::string to_text() const;
};

/// One result per started rank, in rank order. Starts none where the ranks of the tests are
/// processes already (ranks.h): such a test runs where they are threads.
std::vector<ProcessResult> run_processes(const Scenario& scenario, const RunOptions& options);

/// "" if all exited with 0, else every rank's status and output.
std::string failures(const std::vector<ProcessResult>& results);

/// In a scenario: prints a line that run_processes reacts to, and that a test can search for.
void mark(std::string_view text);

/// In a scenario: the text of the exception that `body` throws; "" if it does not throw.
std::string error_of(const std::function<void()>& body);

/// The main function of all test programs: gtest, or the scenario that TESSERA_TEST_SCENARIO names.
int test_main(int argc, char** argv);

}  // namespace tessera::testing
