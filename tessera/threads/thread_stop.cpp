// Rounds that can never complete: their ranks get an error, with the reason, immediately.
#include <algorithm>

#include "tessera/base/errors.h"
#include "tessera/threads/thread_after_unlock.h"
#include "tessera/threads/thread_hub.h"

namespace tessera::comm {
namespace {

/// The first seat that is taken, for the title of a round that failed as a whole.
size_t any_taken_seat(const Round& round) {
  for (size_t i = 0; i < round.seats.size(); ++i) {
    if (round.seats[i].taken) return i;
  }
  return 0;
}

bool is_open(const Round& round) {
  return round.state.load(std::memory_order_relaxed) == Round::State::open;
}

Failure about(const Round& round, const std::string& why) {
  return {Failure::Kind::peer, join_text(round.title(any_taken_seat(round)), ": ", why)};
}

}  // namespace

/// Fails one open round. An abandoned message must not match a later partner.
void ThreadHub::fail_open(Round& round, Failure why, AfterUnlock& after) {
  finish(round, std::move(why), after);
  if (!round.is_message) return;
  std::erase_if(round.channel.messages_, [&](const auto& other) { return other.get() == &round; });
}

void ThreadHub::fail_rounds_of(Channel& channel, const std::string& why, AfterUnlock& after) {
  for (const auto& round : channel.open_) {
    if (is_open(*round)) finish(*round, about(*round, why), after);
  }
  for (const auto& round : channel.messages_) finish(*round, about(*round, why), after);
  channel.messages_.clear();
}

void ThreadHub::stop(Failure why, AfterUnlock& after) {
  if (stopped_) return;
  stopped_ = std::move(why);
  for (auto& [ranks, channel] : channels_) fail_rounds_of(*channel, stopped_->message, after);
}

void ThreadHub::abort(Channel& channel, int index) {
  AfterUnlock after;
  std::lock_guard lock(mutex_);
  fail_rounds_of(channel, join_text("aborted by rank ", channel.ranks_[static_cast<size_t>(index)]),
                 after);
}

void ThreadHub::abort(Round& round, size_t seat) {
  AfterUnlock after;
  std::lock_guard lock(mutex_);
  if (!is_open(round)) return;
  fail_open(round, about(round, join_text("aborted by rank ", round.rank_of(seat))), after);
}

void ThreadHub::fail_rounds_that_need(int rank, AfterUnlock& after) {
  const std::string why = join_text("rank ", rank, " has ended and will not take part");
  for (auto& [ranks, channel] : channels_) {
    const auto member = std::ranges::find(ranks, rank);
    if (member == ranks.end()) continue;
    const uint64_t posted = channel->posted_[static_cast<size_t>(member - ranks.begin())];
    for (const auto& round : channel->open_) {
      if (round->sequence >= posted && is_open(*round)) finish(*round, about(*round, why), after);
    }
    std::erase_if(channel->messages_, [&](const std::shared_ptr<Round>& round) {
      const auto ended = ended_partner(*channel, *round);
      if (ended) finish(*round, about(*round, *ended), after);
      return ended.has_value();
    });
  }
}

void ThreadHub::detect_deadlock(AfterUnlock& after) {
  if (!detect_deadlock_ || live_threads_ == 0 || counted_blocked_ < live_threads_) return;
  // Another thread may be moving data right now; its round will wake some thread.
  const bool moving =
      std::ranges::any_of(blocked_, [](const Blocked& b) { return !is_open(*b.round); });
  if (moving) return;
  stop({Failure::Kind::peer, blocked_text()}, after);
}

std::string ThreadHub::blocked_text() const {
  std::vector<std::pair<int, std::string>> lines;
  for (const auto& blocked : blocked_) {
    const Round& round = *blocked.round;
    const auto missing = round.missing();
    const bool any = missing.size() == 1 && missing.front() < 0;
    const int rank = round.rank_of(blocked.seat);
    lines.emplace_back(rank, join_text("\n  rank ", rank, " waits in ", round.title(blocked.seat),
                                       " for ", any ? "any rank" : "rank " + list_text(missing)));
  }
  std::ranges::sort(lines);
  std::string text = "deadlock: every rank waits and none can go on:";
  for (const auto& [rank, line] : lines) text += line;
  return text;
}

}  // namespace tessera::comm
