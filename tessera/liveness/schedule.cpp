#include "tessera/liveness/schedule.h"

#include <thread>
#include <utility>

namespace tessera::comm {
namespace {

class MachineSchedule final : public Schedule {
 public:
  Clock::time_point now() override { return Clock::now(); }
  void sleep_for(Clock::duration time) override { std::this_thread::sleep_for(time); }
  void start(std::function<void()> body) override { std::thread(std::move(body)).detach(); }
  bool wait(const IsReadyWithin& is_ready_within, Clock::duration limit) override {
    return is_ready_within(limit);
  }
};

thread_local Schedule* entered = nullptr;

}  // namespace

Schedule& Schedule::current() {
  static auto* machine = new MachineSchedule();  // detached threads may outlive static objects
  return entered != nullptr ? *entered : *machine;
}

Schedule::Guard::Guard(Schedule& schedule) : previous_(std::exchange(entered, &schedule)) {}

Schedule::Guard::~Guard() { entered = previous_; }

}  // namespace tessera::comm
