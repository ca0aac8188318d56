#pragma once

#include <chrono>
#include <functional>
#include <future>

#include "tessera/collective/deadline.h"

/// Clock and threads for the protocols over a store: barriers, liveness, diagnostics, shutdown. The
/// default uses the machine's. A test installs another Schedule, which controls the time and the
/// order in which threads run.
namespace tessera::comm {

class Schedule {
 public:
  using Clock = std::chrono::steady_clock;

  virtual ~Schedule() = default;

  virtual Clock::time_point now() = 0;
  virtual void sleep_for(Clock::duration time) = 0;

  /// Runs `body` on a detached thread that inherits this Schedule. Throws if no thread can be
  /// started.
  virtual void start(std::function<void()> body) = 0;

  /// Blocks until `is_ready_within(limit)` returns true or `limit` has passed; returns its result.
  using IsReadyWithin = std::function<bool(Clock::duration)>;
  virtual bool wait(const IsReadyWithin& is_ready_within, Clock::duration limit) = 0;

  /// The Schedule of the calling thread: the machine's, unless a Guard is active.
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
