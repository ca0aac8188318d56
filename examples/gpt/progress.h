#pragma once

#include <chrono>

#include "run_record.h"
#include "settings.h"

/// Lines like
///   [####......]  40%  step 80/200  loss 1.9  8.2k tokens/s  exposed communication 31%  214 MiB
/// One a few steps rather than one that moves: the output of ranks goes through a launcher.
namespace gpt {

class Stopwatch {
 public:
  double seconds() const {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start_).count();
  }

 private:
  std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
};

class Progress {
 public:
  Progress(const Settings& settings, bool speaks) : settings_(settings), speaks_(speaks) {}

  /// After each step; prints after every `every` steps and after the last.
  void show(const RunRecord& run);

 private:
  const Settings& settings_;
  bool speaks_;
  double seconds_ = 0;  // at the last line
  double exposed_ = 0;
  int64_t tokens_ = 0;
};

}  // namespace gpt
