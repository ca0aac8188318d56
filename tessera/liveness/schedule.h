#pragma once

#include <chrono>
#include <functional>
#include <future>

#include "tessera/collective/deadline.h"

/// Time and threads, as the protocols over a store use them: barriers, liveness, diagnostics,
/// shutdown. In a program these are the machine's own. A test enters another Schedule, and decides
/// what time it is and which thread runs next.
namespace tessera::comm {

class Schedule {
 public:
  using Clock = std::chrono::steady_clock;

  virtual ~Schedule() = default;

  virtual Clock::time_point now() = 0;
  virtual void sleep_for(Clock::duration time) = 0;

  /// Runs `body` on a detached thread, which has the same Schedule. Throws if none can be started.
  virtual void start(std::function<void()> body) = 0;

  /// Blocks until `is_ready_within(limit)` returns true, or `limit` has passed; returns its answer.
  using IsReadyWithin = std::function<bool(Clock::duration)>;
  virtual bool wait(const IsReadyWithin& is_ready_within, Clock::duration limit) = 0;

  /// Of the calling thread: the machine's, unless a Guard is open.
  static Schedule& current();

  class Guard {
   public:
    explicit Guard(Schedule& schedule);
    ~Guard();
    Guard(const Guard&) = delete;
    Guard& operator=(const Guard&) = delete;

   private:
    Schedule* previous_;
  };
};

/// Whether `future` has a result within `limit`.
template <typename Result>
bool ready_within(const std::future<Result>& future, std::chrono::milliseconds limit) {
  return Schedule::current().wait(
      [&](Schedule::Clock::duration time) {
        return future.wait_for(time) == std::future_status::ready;
      },
      std::min(limit, kNever));
}

}  // namespace tessera::comm
