#include "tests/support/stacks.h"

#include <execinfo.h>
#include <signal.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <chrono>
#include <filesystem>
#include <string>
#include <thread>

namespace tessera::testing {
namespace {

constexpr int kQuestion = SIGUSR2;
constexpr auto kTimeToWrite = std::chrono::milliseconds(20);
constexpr int kDeepest = 64;

/// A signal handler: only async-signal-safe calls.
void write_stack(int) {
  const int error = errno;
  std::array<char, 64> line{};
  constexpr std::string_view kHead = "[stack of thread ";
  char* end = std::copy(kHead.begin(), kHead.end(), line.begin());
  end = std::to_chars(end, line.end() - 2, syscall(SYS_gettid)).ptr;
  *end++ = ']';
  *end++ = '\n';
  [[maybe_unused]] const auto written =
      write(STDERR_FILENO, line.data(), static_cast<size_t>(end - line.begin()));
  std::array<void*, kDeepest> frames{};
  backtrace_symbols_fd(frames.data(), backtrace(frames.data(), kDeepest), STDERR_FILENO);
  errno = error;
}

}  // namespace

void answer_with_stacks() {
  std::array<void*, 1> frame{};
  backtrace(frame.data(), 1);  // loads libraries now, which a signal handler must not do
  struct sigaction action {};
  action.sa_handler = write_stack;
  action.sa_flags = SA_RESTART;
  sigaction(kQuestion, &action, nullptr);
}

void ask_for_stacks(pid_t process) {
  std::error_code gone;
  const std::string folder = "/proc/" + std::to_string(process) + "/task";
  std::filesystem::directory_iterator thread(folder, gone);
  for (; !gone && thread != std::filesystem::directory_iterator(); thread.increment(gone)) {
    syscall(SYS_tgkill, process, std::stoi(thread->path().filename()), kQuestion);
    std::this_thread::sleep_for(kTimeToWrite);
  }
}

}  // namespace tessera::testing
