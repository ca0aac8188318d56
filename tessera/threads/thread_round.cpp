#include "tessera/threads/thread_round.h"

#include <algorithm>

#include "tessera/base/text.h"
#include "tessera/threads/thread_hub.h"

namespace tessera::comm {

void ThreadSignal::reset() {
  std::lock_guard lock(mutex_);
  signalled_ = false;
}

bool ThreadSignal::sleep_until(TimePoint deadline) {
  std::unique_lock lock(mutex_);
  return signalled_cv_.wait_until(lock, deadline, [&] { return signalled_; });
}

void ThreadSignal::signal() {
  {
    std::lock_guard lock(mutex_);
    signalled_ = true;
  }
  signalled_cv_.notify_one();
}

const std::shared_ptr<ThreadSignal>& ThreadSignal::of_this_thread() {
  thread_local const auto sleeper = std::make_shared<ThreadSignal>();
  return sleeper;
}

int Round::rank_of(size_t seat) const {
  if (is_message) return seat == 0 ? source.load() : target;
  return channel.ranks()[seat];
}

int Round::source_index() const {
  const auto& ranks = channel.ranks();
  const auto it = std::ranges::find(ranks, source.load());
  return it == ranks.end() ? -1 : static_cast<int>(it - ranks.begin());
}

std::vector<int> Round::missing() const {
  std::vector<int> ranks;
  for (size_t i = 0; i < seats.size(); ++i) {
    if (!seats[i].taken) ranks.push_back(rank_of(i));
  }
  return ranks;
}

std::string Round::title(size_t seat) const {
  const auto name = collective_name(seats[seat].call.what);
  if (!is_message) return join_text(name, " #", sequence, " on ", channel.to_text());
  const int peer = rank_of(1 - seat);
  const std::string whom = peer < 0 ? "" : join_text(seat == 0 ? " to" : " from", " rank ", peer);
  return join_text(name, whom, " with tag ", tag, " on ", channel.to_text());
}

}  // namespace tessera::comm
