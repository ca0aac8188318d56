#pragma once

#include <sys/types.h>

/// A watchdog process: when this process ends, however it does (kill -9 included), it kills the
/// process groups it watches. PR_SET_PDEATHSIG covers only direct children, not what they started.
namespace tessera::cli {

class GroupGuard {
 public:
  GroupGuard();
  ~GroupGuard();  ///< the groups are no longer watched
  GroupGuard(const GroupGuard&) = delete;
  GroupGuard& operator=(const GroupGuard&) = delete;

  /// In a child of this process that leads a group, before it executes a program: from then on
  /// whatever it starts is watched. Async-signal-safe; false: errno says why.
  bool watch_own_group() const noexcept;

 private:
  pid_t pid_ = -1;
  int pipe_ = -1;
};

}  // namespace tessera::cli
