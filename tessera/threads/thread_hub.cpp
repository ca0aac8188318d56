#include "tessera/threads/thread_hub.h"

#include <algorithm>
#include <thread>

#include "tessera/base/errors.h"
#include "tessera/base/ranks_text.h"
#include "tessera/collective/deadline.h"
#include "tessera/collective/group_info.h"
#include "tessera/collective/work_list.h"
#include "tessera/threads/thread_after_unlock.h"

namespace tessera::comm {
namespace {

thread_local const ThreadHub* acting_in = nullptr;

// How often a rank yields before it blocks: usually the round is done by then, and no wake-up is
// needed. Measured on 2 cores: 10 -> 3 us per all_reduce of 2 ranks, 27 -> 8 us of 4, 600 -> 170 us
// of 64. Busy waiting was several times slower.
constexpr int kYields = 3;

// A round that is running at the timeout gets this much more time, repeatedly, to end.
constexpr auto kGrace = std::chrono::milliseconds(50);

}  // namespace

Channel::Channel(const ThreadHub& hub, std::vector<int> ranks)
    : hub_(hub), ranks_(std::move(ranks)), posted_(ranks_.size(), 0) {}

std::string Channel::to_text() const {
  return join_text("group [", ranks_text(ranks_), "] of ", hub_.name());
}

ThreadHub::ThreadHub(int size, std::string name, bool detect_deadlock)
    : name_(std::move(name)),
      detect_deadlock_(detect_deadlock),
      ranks_(static_cast<size_t>(size)),
      live_threads_(size) {}

Channel& ThreadHub::channel(std::span<const int> ranks) {
  std::lock_guard lock(mutex_);
  auto& channel = channels_[std::vector<int>(ranks.begin(), ranks.end())];
  if (!channel) {
    channel = std::make_unique<Channel>(*this, std::vector<int>(ranks.begin(), ranks.end()));
  }
  return *channel;
}

ThreadHub::Presence::Presence(ThreadHub& hub, int rank)
    : hub_(hub), rank_(rank), previous_(std::exchange(acting_in, &hub)) {
  hub_.enter(rank_);
}

ThreadHub::Presence::~Presence() {
  acting_in = previous_;
  hub_.leave(rank_);
}

void ThreadHub::enter(int rank) {
  std::lock_guard lock(mutex_);
  auto& state = ranks_[static_cast<size_t>(rank)];
  // The first thread of each rank was expected from the start and is already counted.
  if (state.ended || state.threads > 0) ++live_threads_;
  if (state.ended) --ended_ranks_;
  state.ended = false;
  ++state.threads;
}

void ThreadHub::leave(int rank) {
  AfterUnlock after;
  std::lock_guard lock(mutex_);
  auto& state = ranks_[static_cast<size_t>(rank)];
  --live_threads_;
  if (--state.threads == 0) {
    state.ended = true;
    ++ended_ranks_;
    fail_rounds_that_need(rank, after);
  }
  detect_deadlock(after);
}

void ThreadHub::fail(int rank, std::exception_ptr error) {
  const Failure failure = Failure::of(error);
  AfterUnlock after;
  std::lock_guard lock(mutex_);
  if (first_failure_) return;
  first_failure_ = FirstFailure{rank, std::move(error)};
  stop({Failure::Kind::peer, join_text("rank ", rank, " failed: ", failure.message)}, after);
}

std::optional<ThreadHub::FirstFailure> ThreadHub::first_failure() const {
  std::lock_guard lock(mutex_);
  return first_failure_;
}

uint64_t ThreadHub::posted(const Channel& channel, int index) const {
  std::lock_guard lock(mutex_);
  return channel.posted_[static_cast<size_t>(index)];
}

void ThreadHub::finish(Round& round, std::optional<Failure> failure, AfterUnlock& after) {
  round.failure = std::move(failure);
  for (auto& seat : round.seats) {
    if (seat.future) after.complete(std::move(seat.future), std::move(seat.future_value), round);
    after.defer(std::move(seat.call));
  }
  round.state.store(Round::State::done, std::memory_order_release);
  forget_blocked(round, nullptr, &after);
}

void ThreadHub::finish_unlocked(Round& round, std::optional<Failure> failure) {
  AfterUnlock after;
  std::lock_guard lock(mutex_);
  finish(round, std::move(failure), after);
}

void ThreadHub::forget_blocked(const Round& round, const ThreadSignal* sleeper,
                               AfterUnlock* after) {
  std::erase_if(blocked_, [&](Blocked& blocked) {
    if (blocked.round != &round) return false;
    if (sleeper != nullptr && blocked.sleeper.get() != sleeper) return false;
    if (blocked.counted) --counted_blocked_;
    if (after != nullptr) after->wake(std::move(blocked.sleeper));
    return true;
  });
}

void ThreadHub::wait(Round& round, size_t seat, std::optional<Milliseconds> limit,
                     Milliseconds timeout) {
  if (!round.is_done()) block_until_done(round, seat, limit, timeout);
  if (round.failure) round.failure->raise();
}

void ThreadHub::block_until_done(Round& round, size_t seat, std::optional<Milliseconds> limit,
                                 Milliseconds timeout) {
  for (int i = 0; i < kYields && !round.is_done(); ++i) std::this_thread::yield();
  const auto& sleeper = ThreadSignal::of_this_thread();
  auto deadline = deadline_after(limit.value_or(timeout));
  const bool counted = acting_in == this && !limit;
  while (!round.is_done()) {
    bool can_help = false;
    {
      AfterUnlock after;
      std::lock_guard lock(mutex_);
      if (round.is_done()) return;
      forget_blocked(round, sleeper.get(), nullptr);  // woken by a signal for an earlier round
      can_help = round.wants_help();
      if (!can_help) {
        sleeper->reset();
        blocked_.push_back({sleeper, &round, seat, counted});
        if (counted) ++counted_blocked_;
        detect_deadlock(after);
      }
    }
    if (can_help) {
      help(round);
      // Already done: `after` ended the round, and a callback that it ran consumed our signal.
    } else if (!round.is_done() && !sleeper->sleep_until(deadline)) {
      give_up(round, seat, limit, timeout);
      deadline = deadline_after(kGrace);
    }
  }
}

void ThreadHub::give_up(Round& round, size_t seat, std::optional<Milliseconds> limit,
                        Milliseconds timeout) {
  AfterUnlock after;
  std::lock_guard lock(mutex_);
  forget_blocked(round, ThreadSignal::of_this_thread().get(), nullptr);
  if (round.state.load(std::memory_order_relaxed) != Round::State::open) return;  // ends soon
  const Failure failure{
      Failure::Kind::peer,
      join_text(round.title(seat), ": rank ", round.rank_of(seat), " waited ",
                limit.value_or(timeout).count(), " ms for rank ", list_text(round.missing()))};
  if (limit) failure.raise();
  fail_open(round, failure, after);
}

c10::intrusive_ptr<c10::ivalue::Future> ThreadHub::future(Round& round, size_t seat,
                                                          std::vector<at::Tensor> value) {
  AfterUnlock after;
  std::lock_guard lock(mutex_);
  auto& future = round.seats[seat].future;
  if (future) return future;
  auto made = make_tensor_list_future(value);
  if (round.is_done()) {
    // "Ready" refers to the caller's current streams, which are not ordered after the mover's.
    if (!round.failure) round.finished.block_current_streams();
    after.complete(made, std::move(value), round);
  } else {
    future = made;
    round.seats[seat].future_value = std::move(value);
  }
  return made;
}

}  // namespace tessera::comm
