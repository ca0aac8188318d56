#include "cli/stdin_relay.h"

#include <fcntl.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <csignal>
#include <system_error>
#include <thread>

namespace tessera::cli {
namespace {

bool write_fully(int file, const char* data, ssize_t size) {
  while (size > 0) {
    const ssize_t written = write(file, data, static_cast<size_t>(size));
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) return false;
    data += written;
    size -= written;
  }
  return true;
}

void relay(int to) {
  sigset_t all;
  sigfillset(&all);  // a reader that is gone is an error of write here, not the end of the process
  pthread_sigmask(SIG_BLOCK, &all, nullptr);
  std::array<char, 1 << 16> buffer;
  for (;;) {
    const ssize_t got = read(STDIN_FILENO, buffer.data(), buffer.size());
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0 || !write_fully(to, buffer.data(), got)) break;
  }
  close(to);
}

}  // namespace

StdinRelay::StdinRelay() {
  std::array<int, 2> ends{};
  if (pipe2(ends.data(), O_CLOEXEC) != 0) {
    throw std::system_error(errno, std::generic_category(), "launch: no pipe for a rank's input");
  }
  read_ = ends[0];
  write_ = ends[1];
}

StdinRelay::~StdinRelay() {
  if (read_ >= 0) close(read_);
  if (write_ >= 0) close(write_);
}

void StdinRelay::start() {
  close(read_);
  read_ = -1;
  std::thread(relay, write_).detach();
  write_ = -1;
}

}  // namespace tessera::cli
