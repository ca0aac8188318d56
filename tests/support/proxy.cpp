#include "tests/support/proxy.h"

#include <sys/poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <chrono>
#include <stdexcept>
#include <vector>

#include "tests/support_pure/property.h"

namespace tessera::testing {

Proxy::Proxy(uint64_t seed, Options options) : options_(options) {
  for (int side = 0; side < 2; ++side) {
    int ends[2];
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, ends) != 0) {
      throw std::runtime_error("socketpair");
    }
    outer_[side] = ends[0];
    inner_[side] = ends[1];
  }
  thread_ = std::thread([this, seed] { run(seed); });
}

Proxy::~Proxy() {
  ends_ = true;
  thread_.join();
  for (const int end : inner_) close(end);
}

void Proxy::cut() {
  for (const int end : inner_) shutdown(end, SHUT_RDWR);
}

/// Forwards up to `bytes` bytes; blocks until the other end accepts them.
bool Proxy::pass(int from, int to, int64_t bytes) {
  std::vector<char> buffer(static_cast<size_t>(bytes));
  const ssize_t got = recv(from, buffer.data(), buffer.size(), MSG_DONTWAIT);
  if (got == 0) shutdown(to, SHUT_WR);
  if (got <= 0) return false;
  for (ssize_t done = 0; done < got && !ends_;) {
    const ssize_t sent = send(to, buffer.data() + done, static_cast<size_t>(got - done),
                              MSG_DONTWAIT | MSG_NOSIGNAL);
    if (sent > 0) {
      done += sent;
    } else if (errno != EAGAIN && errno != EINTR) {
      shutdown(from, SHUT_RDWR);
      return false;
    } else {
      std::this_thread::sleep_for(std::chrono::microseconds(100));
    }
  }
  return true;
}

void Proxy::run(uint64_t seed) {
  test::Rng rng(seed);
  while (!ends_) {
    bool any = false;
    for (int side = 0; side < 2 && !stalled_; ++side) {
      if (!pass(inner_[side], inner_[1 - side], rng.between(1, options_.most_bytes))) continue;
      any = true;
      const auto pause = std::chrono::microseconds(rng.between(0, options_.most_pause_us));
      if (pause.count() > 0) std::this_thread::sleep_for(pause);
    }
    if (!any) std::this_thread::sleep_for(std::chrono::microseconds(200));
  }
}

}  // namespace tessera::testing
