#include "tessera/collective/algorithms/exchange.h"

#include <algorithm>
#include <stdexcept>

#include "tessera/collective/alarm.h"
#include "tessera/collective/algorithms/message_tags.h"
#include "tessera/collective/deadline.h"
#include "tessera/collective/timed_out.h"

namespace tessera::comm {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

constexpr milliseconds kLookAgain(1000);

}  // namespace

Exchange::Exchange(std::shared_ptr<Transport> transport, Group group, milliseconds timeout)
    : transport_(std::move(transport)), group_(group), timeout_(timeout) {}

template <typename Post>
Exchange::Message* Exchange::post(const Post& post_it) {
  Message message;
  try {
    message.work = post_it();
  } catch (const std::exception&) {
    message.error = std::current_exception();
  }
  std::lock_guard lock(mutex_);
  return &messages_.emplace_back(std::move(message));
}

Exchange::Message* Exchange::send(const at::Tensor& piece, int to, int round) {
  if (piece.numel() == 0) return nullptr;
  return post([&] {
    return transport_->send_piece(piece, to, message_tags::exchange(group_.tag, piece, round));
  });
}

Exchange::Message* Exchange::receive(const at::Tensor& piece, int from, int round) {
  if (piece.numel() == 0) return nullptr;
  return post([&] {
    return transport_->receive_piece(piece, from, message_tags::exchange(group_.tag, piece, round));
  });
}

void Exchange::await(Message* message) {
  if (message == nullptr) return;
  if (message->error) std::rethrow_exception(message->error);
  if (!message->work) return;
  if (!deadline_) deadline_ = deadline_after(timeout_);
  for (;;) {
    if (cancelled_) throw std::runtime_error("this rank closed its links");
    if (transport_->broken()) throw_what_failed();
    if (late_.exchange(false)) look_();
    std::optional<Alarm> alarm;
    if (look_) {
      alarm.emplace(look_after_, [this] {
        late_ = true;
        interrupt();
      });
    }
    const auto left = std::chrono::duration_cast<milliseconds>(*deadline_ - Clock::now());
    try {
      if (message->work->wait(std::max(left, milliseconds(1)))) break;
    } catch (const TimedOut&) {
      throw TimedOut(timeout_);  // of the whole exchange, not of its last wait
    }
    alarm.reset();
    if (late_) look_after_ = std::min(look_after_, kLookAgain);
  }
  std::lock_guard lock(mutex_);
  message->work.reset();
}

void Exchange::throw_what_failed() {
  transport_->progress_once();  // messages queued for other peers are still sent
  std::lock_guard lock(mutex_);
  for (const auto& message : messages_) {
    if (!message.work) continue;
    if (const auto error = message.work->exception()) std::rethrow_exception(error);
  }
}

void Exchange::await_all() {
  for (auto& message : messages_) await(&message);
}

void Exchange::when_late(milliseconds after, std::function<void()> look) {
  look_after_ = after;
  look_ = std::move(look);
}

void Exchange::cancel() noexcept {
  cancelled_ = true;
  interrupt();
}

void Exchange::interrupt() noexcept {
  std::lock_guard lock(mutex_);
  for (auto& message : messages_) {
    if (message.work) message.work->abort();
  }
}

}  // namespace tessera::comm
