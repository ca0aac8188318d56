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

/// Processes of several threads on one simulated clock, under a schedule derived from a seed: a
/// failure is reproducible with the same seed.
///
///   Simulation simulation(rng);
///   for (int rank = 0; rank < 4; ++rank) simulation.spawn(rank, [&, rank] { ... });
///   simulation.run();
///
/// One thread runs at a time, until it sleeps, waits, or calls step(), as MemoryStore does at each
/// request. Then a random runnable thread continues. If all sleep, the clock jumps to the earliest
/// wake-up: an hour of sleep takes no time.
namespace tessera::testing {

class Simulation final : public comm::Schedule {
 public:
  static constexpr Clock::duration kForever = Clock::duration::max();

  explicit Simulation(test::Rng& rng);
  ~Simulation() override;

  /// Before run(): adds a thread of process `process`. run() rethrows its exceptions.
  void spawn(int process, std::function<void()> body);

  /// Returns when all threads have ended. Stopped processes, and threads that wait kForever,
  /// continue once all others have ended, with is_over() true; their outcome is ignored. Throws if
  /// a thread runs past `limit`.
  void run(std::chrono::milliseconds limit = std::chrono::hours(1));

  /// Stops the threads of this process, as after SIGSTOP or SIGKILL; the calling thread stops at
  /// its next step.
  void stop(int process);
  void resume(int process);
  bool is_stopped(int process);
  /// Everything that was not stopped has ended: what remains should end by errors.
  bool is_over() const { return over_; }

  /// The process of the calling thread.
  int process();
  /// Lets other threads run.
  void step();
  test::Rng& rng() { return rng_; }
  /// Since the start.
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
