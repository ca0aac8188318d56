#include "tessera/collective/alarm.h"

#include <condition_variable>
#include <mutex>
#include <thread>

#include "tessera/collective/deadline.h"

namespace tessera::comm {

/// One thread checks all alarms every kCoarse while there are some, and for a while after: only the
/// first alarm after a quiet period has to wake it.
class AlarmClock {
 public:
  void set(Alarm& alarm) {
    std::lock_guard lock(mutex_);
    alarm.next_ = first_;
    if (first_ != nullptr) first_->previous_ = &alarm;
    first_ = &alarm;
    ++set_;
    if (asleep_) {
      asleep_ = false;
      awake_.notify_one();
    }
  }

  void end(Alarm& alarm) {
    std::lock_guard lock(mutex_);
    unlink(alarm);
  }

  void run() {
    constexpr int kQuietLooks = 50;
    int quiet = 0;
    uint64_t seen = 0;
    std::unique_lock lock(mutex_);
    for (;;) {
      quiet = first_ == nullptr && set_ == seen ? quiet + 1 : 0;
      seen = set_;
      if (quiet > kQuietLooks) {
        asleep_ = true;
        awake_.wait(lock, [&] { return !asleep_; });
      }
      lock.unlock();
      std::this_thread::sleep_for(Alarm::kCoarse);
      lock.lock();
      ring_late_ones();
    }
  }

 private:
  void unlink(Alarm& alarm) {
    if (alarm.previous_ == nullptr && first_ != &alarm) return;  // already rang
    (alarm.previous_ != nullptr ? alarm.previous_->next_ : first_) = alarm.next_;
    if (alarm.next_ != nullptr) alarm.next_->previous_ = alarm.previous_;
    alarm.previous_ = alarm.next_ = nullptr;
  }

  /// Under the lock, so that cancelling an alarm waits for a ring in progress.
  void ring_late_ones() {
    const auto now = std::chrono::steady_clock::now();
    for (Alarm* alarm = first_; alarm != nullptr;) {
      Alarm* next = alarm->next_;
      if (alarm->when_ <= now) {
        unlink(*alarm);
        alarm->ring_();
      }
      alarm = next;
    }
  }

  std::mutex mutex_;
  std::condition_variable awake_;
  Alarm* first_ = nullptr;
  uint64_t set_ = 0;
  bool asleep_ = false;
};

namespace {

AlarmClock& the_clock() {
  // Never destroyed: its thread runs until process exit.
  static auto* clock = [] {
    auto* made = new AlarmClock();
    std::thread([made] { made->run(); }).detach();
    return made;
  }();
  return *clock;
}

}  // namespace

Alarm::Alarm(std::chrono::milliseconds after, std::function<void()> ring)
    : when_(deadline_after(after)), ring_(std::move(ring)) {
  the_clock().set(*this);
}

Alarm::~Alarm() { the_clock().end(*this); }

}  // namespace tessera::comm
