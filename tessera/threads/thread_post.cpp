// How a rank takes its seat in a round, and what happens when the last one does.
#include <algorithm>

#include "tessera/base/errors.h"
#include "tessera/threads/thread_after_unlock.h"
#include "tessera/threads/thread_hub.h"

namespace tessera::comm {
namespace {

std::optional<std::string> own_mistake(const Call& call, int index, int size) {
  try {
    check_call(call, index, size);
    return std::nullopt;
  } catch (const InvalidArgument& error) {
    return error.what();
  }
}

/// The first seat that is taken; at least one is.
size_t first_seat(const Round& round) {
  size_t seat = 0;
  while (!round.seats[seat].taken) ++seat;
  return seat;
}

std::vector<const Call*> calls_of(const Round& round) {
  std::vector<const Call*> calls;
  calls.reserve(round.seats.size());
  for (const auto& seat : round.seats) calls.push_back(&seat.call);
  return calls;
}

/// The failure of `f`, with the round's title; nullopt if it succeeds.
template <typename F>
std::optional<Failure> failure_in(const Round& round, const F& f) {
  try {
    f();
    return std::nullopt;
  } catch (...) {
    Failure failure = Failure::of(std::current_exception());
    failure.message = join_text(round.title(0), ": ", failure.message);
    return failure;
  }
}

}  // namespace

void ThreadHub::require_running(const Channel& channel, const Call& call) const {
  if (!stopped_) return;
  Failure{stopped_->kind,
          join_text(collective_name(call.what), " on ", channel.to_text(), ": ", stopped_->message)}
      .raise();
}

std::optional<std::string> ThreadHub::ended_rank(const Channel& channel, uint64_t number) const {
  if (ended_ranks_ == 0) return std::nullopt;
  for (size_t i = 0; i < channel.ranks_.size(); ++i) {
    const int rank = channel.ranks_[i];
    if (ranks_[static_cast<size_t>(rank)].ended && channel.posted_[i] <= number) {
      return join_text("rank ", rank, " has ended and will not take part");
    }
  }
  return std::nullopt;
}

std::shared_ptr<Round> ThreadHub::post(Channel& channel, int index, Call call) {
  const auto seat = static_cast<size_t>(index);
  const auto mistake = own_mistake(call, index, channel.size());
  StreamMarks marks;
  if (!mistake) marks.mark(call);

  std::shared_ptr<Round> round;
  bool last = false;
  {
    AfterUnlock after;
    std::lock_guard lock(mutex_);
    require_running(channel, call);
    const uint64_t number = channel.posted_[seat]++;
    if (number - channel.first_ == channel.open_.size()) {
      channel.open_.push_back(std::make_shared<Round>(channel, number, channel.ranks_.size()));
    }
    round = channel.open_[number - channel.first_];
    last = ++round->taken == round->seats.size();
    if (last) {  // rounds fill up in order, so this is the front one
      channel.open_.pop_front();
      ++channel.first_;
    }
    if (round->is_done()) round->failure->raise();

    const int rank = channel.ranks_[seat];
    Seat& mine = round->seats[seat];
    mine.call = std::move(call);
    std::optional<Failure> refused;
    const auto refuse = [&](Failure::Kind kind, const std::string& why) {
      refused = Failure{kind, join_text(round->title(seat), ": ", why)};
    };
    if (mistake) {
      refuse(Failure::Kind::invalid_argument, join_text("rank ", rank, ": ", *mistake));
    } else if (const auto ended = ended_rank(channel, number)) {
      refuse(Failure::Kind::peer, *ended);
    } else if (round->taken > 1) {
      const size_t other = first_seat(*round);
      const auto found =
          difference(round->seats[other].call, channel.ranks_[other], mine.call, rank);
      if (found) refuse(Failure::Kind::peer, "the ranks do not agree: " + *found);
    }
    mine.taken = true;
    mine.marks = std::move(marks);
    if (refused) {
      finish(*round, refused, after);
      refused->raise();
    }
    if (last) round->state.store(Round::State::running, std::memory_order_relaxed);
  }
  if (last) run(*round);
  return round;
}

void ThreadHub::run(Round& round) {
  std::optional<Failure> failure;
  TransferStreams streams;
  try {
    for (const auto& seat : round.seats) streams.enter(seat.call);
    if (const auto found = misfit(calls_of(round), round.channel.ranks())) {
      failure = Failure{Failure::Kind::peer,
                        join_text(round.title(0), ": the ranks do not agree: ", *found)};
    } else {
      for (const auto& seat : round.seats) seat.marks.block_current_streams();
      round.move.emplace(calls_of(round));
    }
  } catch (...) {
    failure = Failure::of(std::current_exception());
  }
  if (failure) {
    finish_unlocked(round, failure);
    failure->raise();
  }
  const int shares = round.move->shares();
  round.unfinished_shares.store(shares, std::memory_order_relaxed);
  if (shares == 1) {
    run_share(round, 0);
    return;
  }
  {
    AfterUnlock after;
    std::lock_guard lock(mutex_);
    round.shares.store(shares, std::memory_order_relaxed);
    forget_blocked(round, nullptr, &after);  // they are woken to help
  }
  help(round);
}

void ThreadHub::help(Round& round) {
  const int shares = round.shares.load(std::memory_order_relaxed);
  for (;;) {
    const int share = round.next_share.fetch_add(1, std::memory_order_relaxed);
    if (share >= shares) return;
    run_share(round, share);
  }
}

void ThreadHub::run_share(Round& round, int share) {
  if (auto failure = failure_in(round, [&] { round.move->run(share); })) {
    std::lock_guard lock(mutex_);
    round.failure = std::move(failure);
  }
  if (round.unfinished_shares.fetch_sub(1, std::memory_order_acq_rel) != 1) return;
  // The round must end whatever happens here: a running round cannot be stopped.
  auto failure = failure_in(round, [&] {
    for (const auto& seat : round.seats) {
      record_use(seat.call);
      round.finished.mark(seat.call);
    }
  });
  if (round.failure) failure = std::move(round.failure);
  finish_unlocked(round, std::move(failure));
}

}  // namespace tessera::comm
