#pragma once

#include <atomic>
#include <memory>
#include <mutex>
#include <vector>

#include "tessera/observe/recorder.h"

/// The log that taps write and recorders read.
namespace tessera::comm {

/// An event whose end is recorded later, by the thread that waits.
class EventRecord {
 public:
  explicit EventRecord(CommEvent event) : event_(std::move(event)) {}

  /// Only the first call has an effect.
  void finish(bool ok) {
    int64_t unset = -1;
    const auto elapsed = std::chrono::nanoseconds(Clock::now() - event_.start).count();
    if (duration_ns_.compare_exchange_strong(unset, elapsed) && !ok) failed_ = true;
  }

  /// Adds its lifetime to the time in which the caller was blocked.
  class ExposedTimer {
   public:
    explicit ExposedTimer(EventRecord* record) : record_(record) {
      if (record_ != nullptr) start_ = Clock::now();
    }
    ~ExposedTimer() {
      if (record_ == nullptr) return;
      record_->exposed_ns_ += std::chrono::nanoseconds(Clock::now() - start_).count();
    }
    ExposedTimer(const ExposedTimer&) = delete;
    ExposedTimer& operator=(const ExposedTimer&) = delete;

   private:
    EventRecord* record_;  // null: no recorder
    Clock::time_point start_;
  };

  CommEvent snapshot() const {
    CommEvent event = event_;
    event.exposed = std::chrono::nanoseconds(exposed_ns_.load());
    event.duration = std::chrono::nanoseconds(duration_ns_.load());
    event.failed = failed_;
    return event;
  }

 private:
  const CommEvent event_;
  std::atomic<int64_t> duration_ns_{-1};
  std::atomic<int64_t> exposed_ns_{0};
  std::atomic<bool> failed_{false};
};

class EventLog {
 public:
  void add(std::shared_ptr<EventRecord> record) {
    std::lock_guard lock(mutex_);
    records_.push_back(std::move(record));
  }

  void clear() {
    std::lock_guard lock(mutex_);
    records_.clear();
  }

  std::vector<CommEvent> snapshot() const {
    std::lock_guard lock(mutex_);
    std::vector<CommEvent> events;
    events.reserve(records_.size());
    for (const auto& record : records_) events.push_back(record->snapshot());
    return events;
  }

 private:
  mutable std::mutex mutex_;
  std::vector<std::shared_ptr<EventRecord>> records_;
};

}  // namespace tessera::comm
