#pragma once

#include <atomic>
#include <cstdint>
#include <thread>

/// Forwards the bytes between the two ends of a connection: in pieces of random size, slowly, not
/// at all for a while, or never again.
///
///   Proxy proxy(seed, {.most_bytes = 100, .most_pause_us = 500});
///   Socket here(proxy.left()), there(proxy.right());      // the two ends of the connection
///   proxy.stall();                                        // like a rebooting switch
///
/// The ends are non-blocking sockets, owned by the caller.
namespace tessera::testing {

class Proxy {
 public:
  struct Options {
    int64_t most_bytes = 1 << 16;  ///< of one piece
    int64_t most_pause_us = 0;     ///< after each piece
  };

  Proxy(uint64_t seed, Options options);
  ~Proxy();
  Proxy(const Proxy&) = delete;
  Proxy& operator=(const Proxy&) = delete;

  int left() const { return outer_[0]; }
  int right() const { return outer_[1]; }

  /// Forwards nothing until resume(); neither end notices.
  void stall() { stalled_ = true; }
  void resume() { stalled_ = false; }
  /// Closes both ends, also in the middle of a message.
  void cut();

 private:
  void run(uint64_t seed);
  bool pass(int from, int to, int64_t bytes);

  Options options_;
  int outer_[2] = {-1, -1};
  int inner_[2] = {-1, -1};
  std::atomic<bool> stalled_{false};
  std::atomic<bool> ends_{false};
  std::thread thread_;
};

}  // namespace tessera::testing
