#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>

namespace tessera::comm {

/// A hundred years. Callers express "never" as the largest value or infinity, which would overflow
/// when added to the clock.
inline constexpr std::chrono::milliseconds kNever = std::chrono::hours(24 * 365 * 100);

/// When `timeout` from now has passed.
inline std::chrono::steady_clock::time_point deadline_after(std::chrono::milliseconds timeout) {
  return std::chrono::steady_clock::now() + std::min(timeout, kNever);
}

/// A timeout that a user gave in seconds, must be positive.
inline std::chrono::milliseconds timeout_of(double seconds) {
  const double most = static_cast<double>(kNever.count());
  return std::chrono::milliseconds(static_cast<int64_t>(std::clamp(seconds * 1000, 1.0, most)));
}

}  // namespace tessera::comm
