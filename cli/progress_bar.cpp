#include "cli/progress_bar.h"

#include <unistd.h>

#include <iostream>

#include "tessera/base/text.h"

namespace tessera::cli {

using std::chrono::milliseconds;
using std::chrono::steady_clock;

ProgressBar::ProgressBar(std::string what)
    : what_(std::move(what)),
      is_terminal_(::isatty(STDERR_FILENO) == 1),
      next_(steady_clock::now() + milliseconds(500)) {}

ProgressBar::~ProgressBar() {
  if (drawn_) std::cerr << "\r\x1b[K" << std::flush;
}

void ProgressBar::show(uint64_t bytes, uint64_t total) {
  if (!is_terminal_ || total == 0 || steady_clock::now() < next_) return;
  next_ = steady_clock::now() + milliseconds(100);
  drawn_ = true;
  constexpr uint64_t kWidth = 30;
  const uint64_t filled = kWidth * bytes / total;
  std::cerr << "\r" << what_ << " [" << std::string(filled, '#')
            << std::string(kWidth - filled, '.') << "] " << 100 * bytes / total << " %  "
            << bytes_text(static_cast<int64_t>(bytes)) << " of "
            << bytes_text(static_cast<int64_t>(total)) << "\x1b[K" << std::flush;
}

}  // namespace tessera::cli
