#include "tessera/base/progress_bar.h"

#include <unistd.h>

#include <algorithm>
#include <iostream>

#include "tessera/base/text.h"

namespace tessera {

using std::chrono::steady_clock;

ProgressBar::ProgressBar(std::string what) : ProgressBar(std::move(what), Options()) {}

ProgressBar::ProgressBar(std::string what, const Options& options)
    : what_(std::move(what)),
      to_(options.to),
      pause_(options.pause),
      next_(steady_clock::now() + options.delay) {
  if (to_ == nullptr && ::isatty(STDERR_FILENO) == 1) to_ = &std::cerr;
}

ProgressBar::~ProgressBar() {
  if (drawn_) *to_ << "\r\x1b[K" << std::flush;
}

bool ProgressBar::due() {
  if (to_ == nullptr || steady_clock::now() < next_) return false;
  next_ = steady_clock::now() + pause_;
  return true;
}

void ProgressBar::show(uint64_t bytes, uint64_t total) {
  if (!due()) return;
  draw(bytes, total,
       join_text(bytes_text(static_cast<int64_t>(bytes)), " of ",
                 bytes_text(static_cast<int64_t>(total))));
}

void ProgressBar::show_count(uint64_t done, uint64_t total, std::string_view things) {
  if (due()) draw(done, total, join_text(done, " of ", total, " ", things));
}

void ProgressBar::draw(uint64_t done, uint64_t total, const std::string& text) {
  if (total == 0) return;
  drawn_ = true;
  constexpr uint64_t kWidth = 30;
  done = std::min(done, total);
  const uint64_t filled = kWidth * done / total;
  *to_ << "\r" << what_ << " [" << std::string(filled, '#') << std::string(kWidth - filled, '.')
       << "] " << 100 * done / total << " %  " << text << "\x1b[K" << std::flush;
}

}  // namespace tessera
