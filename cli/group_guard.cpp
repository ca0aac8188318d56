#include "cli/group_guard.h"

#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <csignal>
#include <system_error>

namespace tessera::cli {
namespace {

constexpr size_t kMostGroups = 4096;

ssize_t read_group(int pipe, pid_t& group) {
  ssize_t got = 0;
  while ((got = read(pipe, &group, sizeof(group))) < 0 && errno == EINTR) {
  }
  return got;
}

/// The guard process. Created by fork without exec, so only async-signal-safe calls are allowed.
[[noreturn]] void guard(int pipe) {
  setpgid(0, 0);  // not affected by Ctrl-C
  sigset_t all;
  sigfillset(&all);
  sigprocmask(SIG_SETMASK, &all, nullptr);
  for (const int file : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) close(file);
  static std::array<pid_t, kMostGroups> groups{};
  size_t count = 0;
  for (pid_t group = 0; read_group(pipe, group) == static_cast<ssize_t>(sizeof(group));) {
    if (count < kMostGroups) groups[count++] = group;
  }
  for (size_t i = 0; i < count; ++i) kill(-groups[i], SIGKILL);
  _exit(0);
}

}  // namespace

GroupGuard::GroupGuard() {
  std::array<int, 2> ends{};
  if (pipe2(ends.data(), O_CLOEXEC) != 0 || (pid_ = fork()) < 0) {
    throw std::system_error(errno, std::generic_category(), "launch: no guard of its ranks");
  }
  if (pid_ == 0) {
    close(ends[1]);
    guard(ends[0]);
  }
  close(ends[0]);
  pipe_ = ends[1];
}

GroupGuard::~GroupGuard() {
  kill(pid_, SIGKILL);  // before it sees the pipe close
  while (waitpid(pid_, nullptr, 0) < 0 && errno == EINTR) {
  }
  close(pipe_);
}

bool GroupGuard::watch_own_group() const noexcept {
  const pid_t group = getpid();
  return write(pipe_, &group, sizeof(group)) == static_cast<ssize_t>(sizeof(group));
}

}  // namespace tessera::cli
