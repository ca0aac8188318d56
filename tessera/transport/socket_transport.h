#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "tessera/collective/exchange.h"
#include "tessera/transport/sockets.h"

/// Messages over sockets of our own, in place of Gloo's. Gloo's thread reads while a caller writes,
/// and must have the connection's lock for it; what it cannot have it asks the kernel for again and
/// again, some thousand times a training step, on a core that another rank computes with. And each
/// of its messages is three: ready to send, ready to receive, the bytes.
///
/// Here nobody but who waits moves bytes: one of the waiting threads at a time, for all of them.
/// Posting puts a message into a queue. A message is a header and its bytes, and all that is queued
/// for a rank goes in one call of the kernel. What comes before its receive is posted is kept.
///.
namespace tessera::comm {

class SocketTransport final : public Transport,
                              public std::enable_shared_from_this<SocketTransport> {
 public:
  /// Connected, not blocking; one a rank, the own place empty.
  explicit SocketTransport(std::vector<Socket> sockets);
  ~SocketTransport() override = default;

  c10::intrusive_ptr<c10d::Work> send_piece(at::Tensor piece, int to, int tag) override;
  c10::intrusive_ptr<c10d::Work> receive_piece(at::Tensor piece, int from, int tag) override;

  void advance() noexcept override;
  bool broken() const noexcept override { return broken_; }
  bool sends_ahead() const override { return true; }

  /// For good: what waits here or at the other ends throws.
  void close() noexcept;

  /// This rank sends nothing more: what peers wait for that it has not sent throws there, at once.
  /// What they send can still be received.
  void end_sending() noexcept;

 private:
  using Lock = std::unique_lock<std::mutex>;
  struct Header {
    uint64_t bytes = 0;
    int64_t tag = 0;
  };
  struct Message {
    at::Tensor piece;  // its memory
    char* data = nullptr;
    Header header;
    size_t moved = 0;     // of a message that is sent, the header first
    bool posted = false;  // somebody asked for it; otherwise the memory is ours
    bool done = false;
    bool interrupted = false;
    std::string error;
  };
  using MessagePtr = std::shared_ptr<Message>;
  struct Peer {
    Socket socket;
    std::deque<MessagePtr> sends;
    std::deque<MessagePtr> receives;  // posted, nothing of them has come
    std::deque<MessagePtr> early;     // come, not posted
    Header header;                    // of the message that comes
    size_t header_read = 0;
    MessagePtr coming;  // nullptr: its header is not complete, or nobody waits for anything
    std::string error;
    bool awaits_bytes() const { return coming != nullptr || !receives.empty(); }
  };
  class MessageWork;

  static MessagePtr message_of(at::Tensor piece, int tag);
  Peer& peer(int rank) { return peers_[static_cast<size_t>(rank)]; }
  bool wait(Message& message, std::chrono::milliseconds timeout);
  void interrupt(Message& message);
  void interrupt_all();
  class Turn;
  void drive(Lock& lock, const Message& mine, std::chrono::steady_clock::time_point deadline);
  bool move_some(Lock& lock);
  void await_sockets(Lock& lock, std::chrono::steady_clock::time_point deadline);
  bool send_queued(Peer& peer, Lock& lock);
  bool read_arrived(Peer& peer, Lock& lock);
  void take(Peer& peer, size_t bytes);
  void begin_message(Peer& peer);
  void end_message(Peer& peer);
  bool fits(Peer& peer, const Message& expected, const Header& come);
  void hand_over(const Message& come, Message& posted);
  static std::deque<MessagePtr>::iterator find_tag(std::deque<MessagePtr>& among, int64_t tag);
  void finish(Message& message) { message.done = finished_ = true; }
  void fail(Peer& peer, const std::string& why);
  void tell_driver() {
    if (sleeping_) ring_bell();
  }
  void ring_bell();

  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<Peer> peers_;
  Socket bell_;  // an eventfd that ends a driver's sleep
  std::atomic<bool> closed_{false};
  std::atomic<bool> broken_{false};
  bool driving_ = false;   // a thread moves bytes; it alone touches what is under way
  bool sleeping_ = false;  // it waits for sockets
  bool finished_ = false;  // some message, since others were told
};

}  // namespace tessera::comm
