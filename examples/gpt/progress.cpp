#include "progress.h"

#include <cstdio>
#include <iostream>

#include "memory.h"

namespace gpt {

void Progress::show(const RunRecord& run) {
  const auto step = static_cast<int64_t>(run.losses.size());
  if (!speaks_ || (step % settings_.every != 0 && step != settings_.steps)) return;
  constexpr int64_t kWidth = 20;
  const auto filled = static_cast<size_t>(kWidth * step / settings_.steps);
  const std::string bar = std::string(filled, '#') + std::string(kWidth - filled, '.');
  const double seconds = run.seconds - seconds_;
  char line[160];
  std::snprintf(line, sizeof(line),
                "[%s] %3d%%  step %d/%d  loss %.4f  %.1fk tokens/s  exposed communication %.0f%%  "
                "%d MiB",
                bar.c_str(), static_cast<int>(100 * step / settings_.steps), static_cast<int>(step),
                static_cast<int>(settings_.steps), run.losses.back(),
                static_cast<double>(run.tokens - tokens_) / seconds / 1e3,
                100 * (run.exposed() - exposed_) / seconds,
                static_cast<int>(resident_bytes() >> 20));
  std::cout << line << std::endl;
  seconds_ = run.seconds;
  exposed_ = run.exposed();
  tokens_ = run.tokens;
}

}  // namespace gpt
