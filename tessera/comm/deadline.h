#pragma once

#include <algorithm>
#include <chrono>

namespace tessera::comm {

/// When `timeout` from now has passed. Callers say "never" with the largest number there is, which
/// added to the clock would be long ago: a hundred years are enough.
inline std::chrono::steady_clock::time_point deadline_after(std::chrono::milliseconds timeout) {
  constexpr std::chrono::milliseconds kNever = std::chrono::hours(24 * 365 * 100);
  return std::chrono::steady_clock::now() + std::min(timeout, kNever);
}

}  // namespace tessera::comm
