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

/// One collective made of messages between pairs of ranks: posts them, and waits for them in a way
/// that can be interrupted. What carries them is a Transport: our own sockets, or Gloo. Internal.
namespace tessera::comm {

/// What can carry messages. Both calls return at once; the Works' wait() gives false when their
/// abort() is called meanwhile, and may then be called again. Messages of one tag between two ranks
/// arrive in the order in which they were sent.
class Transport {
 public:
  virtual ~Transport() = default;
  virtual c10::intrusive_ptr<c10d::Work> send_piece(at::Tensor piece, int to, int tag) = 0;
  virtual c10::intrusive_ptr<c10d::Work> receive_piece(at::Tensor piece, int from, int tag) = 0;
  /// Moves what can be moved at once, where that is not done by a thread of the links.
  virtual void progress_once() noexcept {}
  /// A link failed. A wait for a message of another link is interrupted when it does.
  virtual bool broken() const noexcept { return false; }
  /// Whether a send may be done before the other side has asked for it.
  virtual bool sends_ahead() const = 0;
};

class Exchange {
 public:
  struct Group {
    int rank = 0;
    int size = 1;
    uint32_t tag = 0;  ///< what the call is (message_tags.h)
  };

  Exchange(std::shared_ptr<Transport> links, Group group, std::chrono::milliseconds timeout);

  int rank() const { return group_.rank; }
  int size() const { return group_.size; }
  bool sends_ahead() const { return links_->sends_ahead(); }
  /// For who has other things to do than to wait: moves what can be moved at once.
  void progress_once() noexcept { links_->progress_once(); }

  struct Message {
    c10::intrusive_ptr<c10d::Work> work;
    std::exception_ptr error{};  ///< instead of the work: the link was broken already
  };

  /// Post a contiguous piece; an empty one is not sent and done at once. Both sides name the same
  /// round: pieces of different rounds are not mistaken for each other. The result stays valid. A
  /// broken link shows when the message is awaited, so that the other peers get what is theirs.
  Message* send(const at::Tensor& piece, int to, int round = 0);
  Message* receive(const at::Tensor& piece, int from, int round = 0);

  /// Returns when the message is done; once more does nothing. Throws if any message of this
  /// exchange failed: the rank that this one comes from may have failed too, and never send it.
  void await(Message* message);
  void await_all();

  /// Called on the waiting thread when waiting took `after`, and then every second. May throw,
  /// which ends the exchange.
  void when_late(std::chrono::milliseconds after, std::function<void()> look);

  /// Ends the exchange from another thread: what waits throws.
  void cancel() noexcept;

 private:
  template <typename Post>
  Message* post(const Post& post_it);
  void interrupt() noexcept;
  void throw_what_failed();

  std::shared_ptr<Transport> links_;
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
