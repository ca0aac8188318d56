#pragma once

#include <sys/types.h>

#include <csignal>
#include <optional>
#include <string>
#include <vector>

#include "cli/group_guard.h"

/// One rank as a child process, in its own process group, so that signals also reach its
/// descendants (a rank may be a shell script). stdout and stderr are pipes.
namespace tessera::cli {

/// How a process ended.
struct Ending {
  int exit_code = 0;  ///< if it exited by itself
  int signal = 0;     ///< that killed it; 0 if it exited

  bool ok() const { return exit_code == 0 && signal == 0; }
  int shell_code() const { return signal != 0 ? 128 + signal : exit_code; }
  std::string to_text() const;  ///< "exit code 3", "SIGKILL"
};

std::string signal_name(int signal);

struct RankCommand {
  std::string program;  ///< a path; see find_program
  std::vector<std::string> arguments;
  std::vector<std::string> environment;
  sigset_t signal_mask{};             ///< the child's initial mask
  int stdin_file = -1;                ///< its standard input; -1: empty
  const GroupGuard* guard = nullptr;  ///< watches the rank's group
};

class RankProcess {
 public:
  /// Starts it; throws if the program cannot be run.
  explicit RankProcess(const RankCommand& command);
  RankProcess(RankProcess&& other) noexcept;
  RankProcess& operator=(RankProcess&&) = delete;
  ~RankProcess();  ///< kills the group and reaps the process

  pid_t pid() const { return pid_; }
  int out() const { return out_; }  ///< to read from; non-blocking
  int err() const { return err_; }

  /// How it ended, once it has. The process stays a zombie until the destructor, so its pid is not
  /// reused and signal() stays safe.
  const std::optional<Ending>& poll_ending();
  bool running() { return !poll_ending().has_value(); }
  void signal(int number) const;  ///< to the whole group

 private:
  pid_t pid_ = -1;
  int out_ = -1;
  int err_ = -1;
  std::optional<Ending> ending_;
};

/// The path that a shell would run: `name` itself if it contains a slash, else the first in PATH.
/// Throws InvalidArgument if there is no executable.
std::string find_program(const std::string& name);

}  // namespace tessera::cli
