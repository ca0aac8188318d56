#pragma once

#include <sys/types.h>

/// Outlives this process by a moment: when it is gone, however it went (kill -9 too), the process
/// groups it watches are killed. A child's own PR_SET_PDEATHSIG does not reach what that child
/// started; this does.
namespace tessera::cli {

class GroupGuard {
 public:
  GroupGuard();
  ~GroupGuard();  ///< the groups are nobody's business any more
  GroupGuard(const GroupGuard&) = delete;
  GroupGuard& operator=(const GroupGuard&) = delete;

  void watch(pid_t group);

 private:
  pid_t pid_ = -1;
  int pipe_ = -1;
};

}  // namespace tessera::cli
