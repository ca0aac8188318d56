#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <vector>

/// What happens in a step and when: bundles are used, messages start, are waited for and end. Keeps
/// totals always, and the list of events while somebody wants it.
namespace tessera::fsdp {

class StepLog {
 public:
  using Clock = std::chrono::steady_clock;
  enum class What : uint8_t { use, gather, reduction };
  enum class When : uint8_t { starts, awaited, ends };  ///< of a use only the start

  struct Event {
    What what = What::use;
    When when = When::starts;
    size_t of = 0;  ///< the number of the bundle's first group
    bool backward = false;
    Clock::time_point at;
  };

  /// Of one kind of message. A message is under way from its call until whoever waited for it goes
  /// on; exposed is the time in which the caller did nothing but call or wait.
  struct Total {
    int64_t messages = 0;
    Clock::duration under_way{};
    Clock::duration exposed{};
  };

  const Total& total(What what) const { return what == What::gather ? gathers_ : reductions_; }
  void reset_totals() { gathers_ = reductions_ = {}; }

  void record(bool on);  ///< forgets earlier events
  const std::vector<Event>& events() const { return events_; }

  void note(What what, When when, size_t of, Clock::time_point at);
  void add(What what, Clock::duration under_way, Clock::duration exposed);
  void set_backward(bool on) { backward_ = on; }

 private:
  Total gathers_;
  Total reductions_;
  bool recording_ = false;
  bool backward_ = false;
  std::vector<Event> events_;
};

/// The times of one message. Made before the call.
class MessageTimes {
 public:
  MessageTimes(std::shared_ptr<StepLog> log, StepLog::What what, size_t of);
  void issued();   ///< the call came back, and left a message under way
  void awaited();  ///< its caller begins to wait
  void ended();    ///< and goes on

 private:
  std::shared_ptr<StepLog> log_;
  StepLog::What what_;
  size_t of_;
  StepLog::Clock::time_point called_;
  StepLog::Clock::time_point awaited_;
  StepLog::Clock::duration calling_{};
};

}  // namespace tessera::fsdp
