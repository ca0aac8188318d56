#pragma once

#include <algorithm>
#include <chrono>

#include "tessera/liveness/schedule.h"

namespace tessera::comm {

/// Calls `done()` repeatedly, at intervals growing up to 50 ms, until it returns true or `timeout`
/// passes; returns its last result. Calls `meanwhile()` twice a second.
///
/// For stores: a blocking Store::wait cannot be interrupted to check something else, and logs a
/// warning when it times out.
template <typename Done, typename Meanwhile>
bool poll_until(std::chrono::milliseconds timeout, const Done& done, const Meanwhile& meanwhile) {
  using Clock = Schedule::Clock;
  Schedule& schedule = Schedule::current();
  constexpr std::chrono::microseconds kFirst(100);
  constexpr std::chrono::microseconds kLongest(50000);
  constexpr std::chrono::milliseconds kMeanwhile(500);
  const auto deadline = schedule.now() + std::min(timeout, kNever);
  auto look_around = schedule.now() + kMeanwhile;
  auto pause = kFirst;
  while (!done()) {
    const auto now = schedule.now();
    if (now >= deadline) return false;
    if (now >= look_around) {
      meanwhile();
      look_around = now + kMeanwhile;
    }
    schedule.sleep_for(std::min<Clock::duration>(pause, deadline - now));
    pause = std::min(pause * 2, kLongest);
  }
  return true;
}

template <typename Done>
bool poll_until(std::chrono::milliseconds timeout, const Done& done) {
  return poll_until(timeout, done, [] {});
}

}  // namespace tessera::comm
