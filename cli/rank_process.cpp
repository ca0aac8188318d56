#include "cli/rank_process.h"

#include <fcntl.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <sstream>
#include <system_error>
#include <utility>

#include "tessera/base/errors.h"

namespace tessera::cli {
namespace {

struct Pipe {
  int read = -1;
  int write = -1;
};

Pipe make_pipe() {
  std::array<int, 2> ends{};
  if (pipe2(ends.data(), O_CLOEXEC) != 0) {
    throw std::system_error(errno, std::generic_category(), "launch: no pipe for a rank's output");
  }
  return {ends[0], ends[1]};
}

std::vector<char*> pointers(const std::vector<std::string>& texts) {
  std::vector<char*> result;
  for (const auto& text : texts) result.push_back(const_cast<char*>(text.c_str()));
  result.push_back(nullptr);
  return result;
}

/// In the child: only async-signal-safe calls, since libtorch may have threads. Returns only on
/// failure, with errno set.
void become_rank(const RankCommand& command, char** arguments, char** environment, pid_t launcher,
                 int out, int err) {
  setpgid(0, 0);
  if (command.guard != nullptr && !command.guard->watch_own_group()) return;
  // Covers a launcher that is killed; the guard covers the process group.
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (getppid() != launcher) _exit(1);
  const int in = command.stdin_file >= 0 ? command.stdin_file : open("/dev/null", O_RDONLY);
  if (in < 0 || dup2(in, STDIN_FILENO) < 0) return;
  if (dup2(out, STDOUT_FILENO) < 0 || dup2(err, STDERR_FILENO) < 0) return;
  for (const int number : {SIGINT, SIGTERM, SIGPIPE}) std::signal(number, SIG_DFL);
  sigprocmask(SIG_SETMASK, &command.signal_mask, nullptr);
  execve(command.program.c_str(), arguments, environment);
}

}  // namespace

std::string signal_name(int signal) {
  const char* name = sigabbrev_np(signal);
  return name != nullptr ? std::string("SIG") + name : "signal " + std::to_string(signal);
}

std::string Ending::to_text() const {
  return signal != 0 ? signal_name(signal) : "exit code " + std::to_string(exit_code);
}

RankProcess::RankProcess(const RankCommand& command) {
  std::vector<std::string> words = {command.program};
  words.insert(words.end(), command.arguments.begin(), command.arguments.end());
  const auto arguments = pointers(words);
  const auto environment = pointers(command.environment);
  const Pipe out = make_pipe(), err = make_pipe(), failure = make_pipe();
  const pid_t launcher = getpid();

  pid_ = fork();
  if (pid_ == 0) {
    become_rank(command, const_cast<char**>(arguments.data()),
                const_cast<char**>(environment.data()), launcher, out.write, err.write);
    const int reason = errno;
    [[maybe_unused]] const ssize_t said = write(failure.write, &reason, sizeof(reason));
    _exit(127);
  }
  for (const int end : {out.write, err.write, failure.write}) close(end);
  out_ = out.read;
  err_ = err.read;
  int reason = pid_ < 0 ? errno : 0;
  if (pid_ > 0) {
    setpgid(pid_, pid_);  // in both processes, to avoid a race
    while (read(failure.read, &reason, sizeof(reason)) < 0 && errno == EINTR) {
    }
  }
  close(failure.read);
  if (reason != 0) {
    if (pid_ > 0) waitpid(pid_, nullptr, 0);
    close(out_);
    close(err_);
    throw InvalidArgument(
        join_text("launch: ", command.program, " cannot be run: ", std::strerror(reason)));
  }
  for (const int end : {out_, err_}) fcntl(end, F_SETFL, O_NONBLOCK);
}

RankProcess::RankProcess(RankProcess&& other) noexcept
    : pid_(std::exchange(other.pid_, -1)),
      out_(std::exchange(other.out_, -1)),
      err_(std::exchange(other.err_, -1)),
      ending_(other.ending_) {}

RankProcess::~RankProcess() {
  if (pid_ < 0) return;
  signal(SIGKILL);
  while (waitpid(pid_, nullptr, 0) < 0 && errno == EINTR) {
  }
  close(out_);
  close(err_);
}

const std::optional<Ending>& RankProcess::poll_ending() {
  if (ending_) return ending_;
  siginfo_t info{};
  if (waitid(P_PID, static_cast<id_t>(pid_), &info, WEXITED | WNOHANG | WNOWAIT) == 0 &&
      info.si_pid == pid_) {
    ending_ = info.si_code == CLD_EXITED ? Ending{.exit_code = info.si_status}
                                         : Ending{.signal = info.si_status};
  }
  return ending_;
}

void RankProcess::signal(int number) const { kill(-pid_, number); }

std::string find_program(const std::string& name) {
  const auto can_run = [](const std::filesystem::path& path) {
    std::error_code ignored;
    return std::filesystem::is_regular_file(path, ignored) && access(path.c_str(), X_OK) == 0;
  };
  if (name.find('/') != std::string::npos) {
    std::error_code ignored;
    require(std::filesystem::exists(name, ignored), "launch: there is no program ", name);
    require(can_run(name), "launch: ", name, " is not a program that may be run (chmod +x?)");
    return name;
  }
  const char* path = std::getenv("PATH");
  std::istringstream folders(path != nullptr ? path : "/usr/local/bin:/usr/bin:/bin");
  for (std::string folder; std::getline(folders, folder, ':');) {
    const auto candidate = std::filesystem::path(folder.empty() ? "." : folder) / name;
    if (can_run(candidate)) return candidate.string();
  }
  throw InvalidArgument(join_text("launch: no program ", name, " in PATH",
                                  can_run(name) ? "; for the one in this folder: ./" + name : ""));
}

}  // namespace tessera::cli
