#pragma once

namespace tessera::cli {

/// While it lives, SIGINT, SIGTERM and SIGHUP do not end the process but are noted, so that long
/// work can stop where nothing unfinished is left behind.
///
///   const StopSignal stop;
///   while (...) {
///     write_more();
///     stop.check();          // throws ExitWith{128 + number} once a signal came
///   }
class StopSignal {
 public:
  StopSignal();
  ~StopSignal();
  StopSignal(const StopSignal&) = delete;
  StopSignal& operator=(const StopSignal&) = delete;

  void check() const;
};

}  // namespace tessera::cli
