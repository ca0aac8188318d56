#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "tessera/liveness/schedule.h"
#include "tests/support_pure/property.h"

/// Processes of several threads on one clock, under a schedule that a seed decides: a failure
/// happens again with the same seed.
///
///   Simulation simulation(rng);
///   for (int rank = 0; rank < 4; ++rank) simulation.spawn(rank, [&, rank] { ... });
///   simulation.run();
///
/// One thread runs at a time, until it sleeps, waits, or calls step(), as MemoryStore does at each
/// request. Then the dice choose among those that could go on. When all of them sleep, the time of
/// the next is now: an hour of sleep takes no time.
namespace tessera::testing {

class Simulation final : public comm::Schedule {
 public:
  static constexpr Clock::duration kForever = Clock::duration::max();

  explicit Simulation(test::Rng& rng);
  ~Simulation() override;

  /// Before run(): a thread of process `process`. Exceptions that leave it are rethrown by run().
  void spawn(int process, std::function<void()> body);

  /// Returns when all threads have ended. Processes that are stopped, and threads that wait
  /// kForever, go on once all others have ended, with is_over() true; how they end does not matter.
  /// An error if a thread runs past `limit`.
  void run(std::chrono::milliseconds limit = std::chrono::hours(1));

  /// Threads of this process do not run from now on, as after SIGSTOP or SIGKILL; the caller itself
  /// from its next step.
  void stop(int process);
  void resume(int process);
  bool is_stopped(int process);
  /// All that was not stopped has ended: what remains should end by errors.
  bool is_over() const { return over_; }

  /// The process of the calling thread.
  int process();
  /// Others may go first.
  void step();
  test::Rng& rng() { return rng_; }
  /// Since the begin.
  std::chrono::milliseconds elapsed();

  Clock::time_point now() override;
  void sleep_for(Clock::duration time) override;
  void start(std::function<void()> body) override;
  bool wait(const IsReadyWithin& is_ready_within, Clock::duration limit) override;

 private:
  struct Task;
  using Lock = std::unique_lock<std::mutex>;

  void add(int process, std::function<void()> body);
  void suspend(Lock& lock, Clock::duration time, const IsReadyWithin* is_ready_within);
  void pass_on(Lock& lock);
  std::vector<Task*> candidates();
  bool advance_time();
  bool resume_stopped();
  bool stopped(int process) const;
  void give_up(const std::string& why);

  test::Rng& rng_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<std::unique_ptr<Task>> tasks_;
  std::vector<int> stopped_;
  Task* running_ = nullptr;
  std::atomic<bool> over_{false};
  bool failed_ = false;
  std::string error_;
  Clock::time_point now_{std::chrono::hours(1)};
  Clock::time_point begin_{now_};
  Clock::duration limit_{};
};

}  // namespace tessera::testing
