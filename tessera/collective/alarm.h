#pragma once

#include <chrono>
#include <functional>

/// Calls a function after a delay, unless the alarm is destroyed first: for waits that nearly
/// always end much earlier. Setting and cancelling one takes no system call and wakes no thread; in
/// exchange it may ring up to kCoarse late.
///
///   const Alarm alarm(std::chrono::seconds(5), [&] { exchange.wake(); });
///   ... wait ...
namespace tessera::comm {

class Alarm {
 public:
  static constexpr auto kCoarse = std::chrono::milliseconds(100);

  /// `ring` is called once, on another thread, and must be short; never after the destructor
  /// returned.
  Alarm(std::chrono::milliseconds after, std::function<void()> ring);
  ~Alarm();
  Alarm(const Alarm&) = delete;
  Alarm& operator=(const Alarm&) = delete;

 private:
  friend class AlarmClock;
  std::chrono::steady_clock::time_point when_;
  std::function<void()> ring_;
  Alarm* previous_ = nullptr;
  Alarm* next_ = nullptr;
};

}  // namespace tessera::comm
