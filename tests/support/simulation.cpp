#include "tests/support/simulation.h"

#include <algorithm>
#include <stdexcept>

#include "tessera/base/text.h"

namespace tessera::testing {
namespace {

/// The duration of a step, so that a loop without a sleep makes progress too.
constexpr std::chrono::microseconds kStep(10);

}  // namespace

struct Simulation::Task {
  int process = 0;
  Clock::time_point wakes;
  const IsReadyWithin* is_ready_within = nullptr;
  bool done = false;
  std::condition_variable turn;
  std::thread thread;
};

namespace {
thread_local void* current_task = nullptr;
}  // namespace

Simulation::Simulation(test::Rng& rng) : rng_(rng) {}

Simulation::~Simulation() {
  for (const auto& task : tasks_) {
    if (task->thread.joinable()) task->thread.join();
  }
}

void Simulation::spawn(int process, std::function<void()> body) {
  const Lock lock(mutex_);
  add(process, std::move(body));
}

void Simulation::start(std::function<void()> body) {
  const Lock lock(mutex_);
  add(static_cast<Task*>(current_task)->process, std::move(body));
}

void Simulation::add(int process, std::function<void()> body) {
  tasks_.push_back(std::make_unique<Task>());
  Task* task = tasks_.back().get();
  task->process = process;
  task->wakes = now_;
  task->thread = std::thread([this, task, body = std::move(body)]() mutable {
    current_task = task;
    const Guard guard(*this);
    {
      Lock lock(mutex_);
      task->turn.wait(lock, [&] { return running_ == task; });
    }
    std::string error;
    try {
      body();
    } catch (const std::exception& e) {
      error = e.what();
    }
    body = nullptr;  // destroys what it owned inside the simulation
    Lock lock(mutex_);
    if (!error.empty() && error_.empty() && !over_) error_ = error;
    task->done = true;
    pass_on(lock);
  });
}

bool Simulation::stopped(int process) const {
  return !over_ && std::ranges::count(stopped_, process) > 0;
}

std::vector<Simulation::Task*> Simulation::candidates() {
  std::vector<Task*> found;
  for (const auto& task : tasks_) {
    if (task->done || stopped(task->process)) continue;
    const bool ready = task->is_ready_within != nullptr && (*task->is_ready_within)({});
    if (ready || task->wakes <= now_) found.push_back(task.get());
  }
  return found;
}

bool Simulation::advance_time() {
  Clock::time_point next = Clock::time_point::max();
  for (const auto& task : tasks_) {
    if (!task->done && !stopped(task->process)) next = std::min(next, task->wakes);
  }
  if (next == Clock::time_point::max()) return false;  // no task, or all of them wait forever
  now_ = std::max(now_, next);
  return true;
}

/// For when only stopped tasks, or tasks that wait forever, are left.
bool Simulation::resume_stopped() {
  if (over_) return false;
  over_ = true;
  return std::ranges::any_of(tasks_, [](const auto& task) { return !task->done; });
}

void Simulation::give_up(const std::string& why) {
  if (error_.empty()) error_ = why;
  failed_ = true;
  over_ = true;
  limit_ += std::chrono::hours(24 * 365);  // time for the remaining tasks to end by errors
}

/// Chooses the next task to run; the caller waits for its own turn, or ends.
void Simulation::pass_on(Lock&) {
  now_ += kStep;
  if (now_ - begin_ > limit_) {
    if (failed_) std::abort();  // is_over() did not end it
    give_up(join_text("a thread still runs after ",
                      std::chrono::duration_cast<std::chrono::seconds>(limit_).count(), " s"));
  }
  auto ready = candidates();
  while (ready.empty() && (advance_time() || resume_stopped())) ready = candidates();
  running_ =
      ready.empty() ? nullptr : ready[static_cast<size_t>(rng_.between(0, std::ssize(ready) - 1))];
  if (running_ != nullptr) {
    running_->turn.notify_one();
  } else {
    changed_.notify_all();
  }
}

void Simulation::suspend(Lock& lock, Clock::duration time, const IsReadyWithin* is_ready_within) {
  Task* task = static_cast<Task*>(current_task);
  task->wakes = time == kForever ? Clock::time_point::max() : now_ + time;
  task->is_ready_within = is_ready_within;
  pass_on(lock);
  task->turn.wait(lock, [&] { return running_ == task; });
  task->is_ready_within = nullptr;
}

void Simulation::run(std::chrono::milliseconds limit) {
  Lock lock(mutex_);
  limit_ = limit;
  pass_on(lock);
  changed_.wait(lock, [&] { return running_ == nullptr; });
  if (!error_.empty()) throw std::runtime_error(error_);
}

void Simulation::stop(int process) {
  const Lock lock(mutex_);
  stopped_.push_back(process);
}

void Simulation::resume(int process) {
  const Lock lock(mutex_);
  std::erase(stopped_, process);
}

bool Simulation::is_stopped(int process) {
  const Lock lock(mutex_);
  return std::ranges::count(stopped_, process) > 0;
}

int Simulation::process() { return static_cast<Task*>(current_task)->process; }

std::chrono::milliseconds Simulation::elapsed() {
  const Lock lock(mutex_);
  return std::chrono::duration_cast<std::chrono::milliseconds>(now_ - begin_);
}

comm::Schedule::Clock::time_point Simulation::now() {
  const Lock lock(mutex_);
  return now_;
}

void Simulation::step() { sleep_for({}); }

void Simulation::sleep_for(Clock::duration time) {
  Lock lock(mutex_);
  suspend(lock, std::max(time, Clock::duration::zero()), nullptr);
}

bool Simulation::wait(const IsReadyWithin& is_ready_within, Clock::duration limit) {
  if (is_ready_within({})) return true;
  Lock lock(mutex_);
  suspend(lock, limit, &is_ready_within);
  lock.unlock();
  return is_ready_within({});
}

}  // namespace tessera::testing
