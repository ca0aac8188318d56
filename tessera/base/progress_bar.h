#pragma once

#include <chrono>
#include <cstdint>
#include <iosfwd>
#include <string>
#include <string_view>

#include "tessera/base/api.h"

namespace tessera {

/// A progress line on stderr, redrawn at most ten times a second, for programs that people wait
/// for. The library itself shows none: it calls back (SaveOptions::on_progress), and the command
/// line and the Python package draw.
///
///   writing [#########...........]  45 %  450 MiB of 1 GiB
///
/// Drawn only on a terminal, and only if the work takes longer than half a second.
class TESSERA_API ProgressBar {
 public:
  explicit ProgressBar(std::string what);

  struct Options {
    std::ostream* to = nullptr;  ///< nullptr: stderr, if that is a terminal
    std::chrono::milliseconds delay{500};
    std::chrono::milliseconds pause{100};
  };
  ProgressBar(std::string what, const Options& options);

  /// Erases the line.
  ~ProgressBar();
  ProgressBar(const ProgressBar&) = delete;
  ProgressBar& operator=(const ProgressBar&) = delete;

  void show(uint64_t bytes, uint64_t total);
  /// The same of things that are counted: "3 of 20 runs".
  void show_count(uint64_t done, uint64_t total, std::string_view things);

 private:
  bool due();
  void draw(uint64_t done, uint64_t total, const std::string& text);

  std::string what_;
  std::ostream* to_;  // nullptr: nothing is drawn
  std::chrono::milliseconds pause_;
  bool drawn_ = false;
  std::chrono::steady_clock::time_point next_;
};

}  // namespace tessera
