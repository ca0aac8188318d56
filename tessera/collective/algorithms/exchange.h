#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/intrusive_ptr.h>

#include <atomic>
#include <chrono>
#include <deque>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <torch/csrc/distributed/c10d/Work.hpp>

/// One collective made of point-to-point messages: posts them, and waits for them interruptibly. A
/// Transport carries them: our own sockets, or Gloo. Internal.
namespace tessera::comm {

/// Point-to-point transport. Both calls return immediately. wait() of their Works returns false if
/// abort() is called meanwhile, and may then be called again. Messages with one tag between two
/// ranks arrive in sending order.
class Transport {
 public:
  virtual ~Transport() = default;
  virtual c10::intrusive_ptr<c10d::Work> send_piece(at::Tensor piece, int to, int tag) = 0;
  virtual c10::intrusive_ptr<c10d::Work> receive_piece(at::Tensor piece, int from, int tag) = 0;
  /// Makes progress without blocking, if the transport has no thread for that.
  virtual void progress_once() noexcept {}
  /// A connection failed. That interrupts waits for messages on other connections.
  virtual bool broken() const noexcept { return false; }
  /// Whether a send may complete before the receiver has posted the receive.
  virtual bool sends_ahead() const = 0;
};

class Exchange {
 public:
  struct Group {
    int rank = 0;
    int size = 1;
    uint32_t tag = 0;  ///< identifies the call (message_tags.h)
  };

  Exchange(std::shared_ptr<Transport> transport, Group group, std::chrono::milliseconds timeout);

  int rank() const { return group_.rank; }
  int size() const { return group_.size; }
  bool sends_ahead() const { return transport_->sends_ahead(); }
  /// Makes progress without blocking, for callers with other work to do.
  void progress_once() noexcept { transport_->progress_once(); }

  struct Message {
    c10::intrusive_ptr<c10d::Work> work;
    std::exception_ptr error{};  ///< instead of the work: the connection was already broken
  };

  /// Posts a contiguous piece; an empty one is not sent and completes immediately. Both sides pass
  /// the same round, which separates pieces of different rounds. The result stays valid. A broken
  /// connection is reported when the message is awaited, so that the other peers still get their
  /// messages.
  Message* send(const at::Tensor& piece, int to, int round = 0);
  Message* receive(const at::Tensor& piece, int from, int round = 0);

  /// Blocks until the message is complete; idempotent. Throws if any message of this exchange
  /// failed: the rank that sends this one may have failed too, and never send it.
  void await(Message* message);
  void await_all();

  /// `look` is called on the waiting thread after waiting for `after`, then every second. It may
  /// throw, which ends the exchange.
  void when_late(std::chrono::milliseconds after, std::function<void()> look);

  /// Ends the exchange from another thread: pending waits throw.
  void cancel() noexcept;

 private:
  template <typename Post>
  Message* post(const Post& post_it);
  void interrupt() noexcept;
  void throw_what_failed();

  std::shared_ptr<Transport> transport_;
  Group group_;
  std::chrono::milliseconds timeout_;
  std::optional<std::chrono::steady_clock::time_point> deadline_;  // from the first wait on
  std::chrono::milliseconds look_after_{0};
  std::function<void()> look_;
  std::atomic<bool> cancelled_{false};
  std::atomic<bool> late_{false};
  std::mutex mutex_;  // guards messages_ against interrupt(), which other threads call
  std::deque<Message> messages_;
};

}  // namespace tessera::comm
