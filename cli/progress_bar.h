#pragma once

#include <chrono>
#include <cstdint>
#include <string>

namespace tessera::cli {

/// A line on stderr that is drawn again as work goes on, at most ten times a second:
///
///   writing [#########...........]  45 %  450.0 MiB of 1.0 GiB
///
/// Nothing is drawn unless stderr is a terminal, nor for work that takes less than half a second.
class ProgressBar {
 public:
  explicit ProgressBar(std::string what);
  /// Erases the line.
  ~ProgressBar();
  ProgressBar(const ProgressBar&) = delete;
  ProgressBar& operator=(const ProgressBar&) = delete;

  void show(uint64_t bytes, uint64_t total);

 private:
  std::string what_;
  bool is_terminal_;
  bool drawn_ = false;
  std::chrono::steady_clock::time_point next_;
};

}  // namespace tessera::cli
