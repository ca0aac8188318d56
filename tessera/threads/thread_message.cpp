// Messages between two ranks. A send and its receive match like a collective of two: the data is
// copied directly from one tensor to the other, and neither is done before both have been posted.
#include <algorithm>

#include "tessera/base/errors.h"
#include "tessera/threads/thread_after_unlock.h"
#include "tessera/threads/thread_hub.h"

namespace tessera::comm {
namespace {

constexpr size_t kSender = 0;
constexpr size_t kReceiver = 1;

std::optional<std::string> message_difference(const Round& round) {
  const at::Tensor& out = round.seats[kSender].call.inputs[0];
  const at::Tensor& in = round.seats[kReceiver].call.outputs[0];
  if (out.scalar_type() == in.scalar_type() && out.numel() == in.numel() &&
      out.device().type() == in.device().type()) {
    return std::nullopt;
  }
  const auto text = [](const at::Tensor& t) {
    return join_text(t.numel(), " elements of ", c10::toString(t.scalar_type()), " on ",
                     t.device().str());
  };
  return join_text("rank ", round.source.load(), " sends ", text(out), ", rank ", round.target,
                   " expects ", text(in));
}

}  // namespace

std::shared_ptr<Round> ThreadHub::take_partner(Channel& channel, size_t my_seat,
                                               const Round& mine) {
  const size_t its_seat = 1 - my_seat;
  const auto fits = [&](const std::shared_ptr<Round>& other) {
    const bool same_source = other->source == mine.source || other->source < 0 || mine.source < 0;
    return other->seats[its_seat].taken && same_source && other->target == mine.target &&
           other->tag == mine.tag;
  };
  const auto it = std::ranges::find_if(channel.messages_, fits);
  if (it == channel.messages_.end()) return nullptr;
  auto found = std::move(*it);
  channel.messages_.erase(it);
  return found;
}

std::shared_ptr<Round> ThreadHub::post_message(Channel& channel, int index, int peer, int tag,
                                               Call call) {
  check_call(call, index, channel.size());
  require(peer >= -1 && peer < channel.size() && peer != index, collective_name(call.what), " on ",
          channel, ": the peer has group index ", peer, ", mine is ", index);
  StreamMarks marks;
  marks.mark(call);
  const size_t seat = call.what == Collective::send ? kSender : kReceiver;
  const int me = channel.ranks_[static_cast<size_t>(index)];
  const int other = peer < 0 ? -1 : channel.ranks_[static_cast<size_t>(peer)];

  auto round = std::make_shared<Round>(channel, 0, 2);
  round->is_message = true;
  round->source = seat == kSender ? me : other;
  round->target = seat == kSender ? other : me;
  round->tag = tag;
  bool complete = false;
  {
    AfterUnlock after;
    std::lock_guard lock(mutex_);
    require_running(channel, call);
    if (auto partner = take_partner(channel, seat, *round)) {
      partner->source = std::max(partner->source.load(), round->source.load());  // -1 is "any"
      round = std::move(partner);
      complete = true;
    }
    Seat& mine = round->seats[seat];
    mine.taken = true;
    mine.call = std::move(call);
    mine.marks = std::move(marks);
    if (complete) {
      round->state.store(Round::State::running, std::memory_order_relaxed);
    } else if (const auto ended = ended_partner(channel, *round)) {
      const Failure failure{Failure::Kind::peer, join_text(round->title(seat), ": ", *ended)};
      failure.raise();
    } else {
      channel.messages_.push_back(round);
    }
  }
  if (complete) run_message(*round);
  return round;
}

std::optional<std::string> ThreadHub::ended_partner(const Channel& channel,
                                                    const Round& round) const {
  if (ended_ranks_ == 0) return std::nullopt;
  const auto ended = [&](int rank) { return ranks_[static_cast<size_t>(rank)].ended; };
  const int missing = round.missing().front();
  if (missing >= 0) {
    if (!ended(missing)) return std::nullopt;
    return join_text("rank ", missing, " has ended and will not take part");
  }
  const bool all_others = std::ranges::all_of(
      channel.ranks_, [&](int rank) { return rank == round.target || ended(rank); });
  if (!all_others) return std::nullopt;
  return std::string("all other ranks have ended");
}

void ThreadHub::run_message(Round& round) {
  std::optional<Failure> failure;
  TransferStreams streams;
  try {
    for (const auto& seat : round.seats) streams.enter(seat.call);
    if (const auto found = message_difference(round)) {
      failure = Failure{Failure::Kind::peer,
                        join_text(round.title(kSender), ": the ranks do not agree: ", *found)};
    } else {
      for (const auto& seat : round.seats) seat.marks.block_current_streams();
      move_message(round.seats[kSender].call, round.seats[kReceiver].call);
      for (const auto& seat : round.seats) {
        record_use(seat.call);
        round.finished.mark(seat.call);
      }
    }
  } catch (...) {
    failure = Failure::of(std::current_exception());
  }
  finish_unlocked(round, failure);
  if (failure) failure->raise();
}

}  // namespace tessera::comm
