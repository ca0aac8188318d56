#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

/// Records the order of events of a step while a recording is active: buckets are used, messages
/// start, are waited for and end. How long a message took is measured by comm::Recorder.
namespace tessera::fsdp {

class StepLog {
 public:
  using Clock = std::chrono::steady_clock;
  enum class What : uint8_t { use, gather, reduction };
  enum class When : uint8_t { starts, awaited, ends };  ///< a use has a start only

  struct Event {
    What what = What::use;
    When when = When::starts;
    size_t of = 0;  ///< the number of the bucket's first group
    bool backward = false;
    Clock::time_point at;
  };

  /// Identifies one message; passed to the code that sends it.
  struct Message {
    std::shared_ptr<StepLog> log;
    What what = What::gather;
    size_t of = 0;
    void note(When when) const { log->note(what, when, of); }
  };

  /// Starts a recording and returns the index of its first event. Several may be active.
  size_t start() {
    ++recordings_;
    return events_.size();
  }
  /// Ends a recording; the last one to end drops the events.
  void stop() {
    if (--recordings_ == 0) events_.clear();
  }
  /// Of all active recordings.
  const std::vector<Event>& events() const { return events_; }

  void note(What what, When when, size_t of) {
    if (recordings_ > 0) events_.push_back({what, when, of, backward_, Clock::now()});
  }
  void set_backward(bool on) { backward_ = on; }

 private:
  int recordings_ = 0;
  bool backward_ = false;
  std::vector<Event> events_;
};

}  // namespace tessera::fsdp
