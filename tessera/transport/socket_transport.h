#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "tessera/collective/algorithms/exchange.h"
#include "tessera/transport/sockets.h"

/// Point-to-point messages over one TCP connection per peer. Inside the transport room only.
///
/// Progress: there is no I/O thread. Threads blocked in wait() take turns driving all sockets, one
/// at a time, for all waiting threads. Posting only appends to a queue.
/// Matching: by (peer, tag), in the order of posting; messages that arrive without a posted receive
/// go to the unexpected queue. A message is a 16-byte header and its bytes, and all that is queued
/// for a peer leaves in one sendmsg().
/// Why not Gloo's transport: its I/O thread contends with writers for the connection lock and polls
/// while it cannot have it, thousands of calls a training step; each of its messages takes a
/// three-way handshake.
namespace tessera::comm {

class SocketTransport final : public Transport,
                              public std::enable_shared_from_this<SocketTransport> {
 public:
  /// Connected, non-blocking; one per rank, the own entry empty.
  explicit SocketTransport(std::vector<Socket> sockets);
  ~SocketTransport() override = default;

  c10::intrusive_ptr<c10d::Work> send_piece(at::Tensor piece, int to, int tag) override;
  c10::intrusive_ptr<c10d::Work> receive_piece(at::Tensor piece, int from, int tag) override;

  void progress_once() noexcept override;
  bool broken() const noexcept override { return broken_; }
  bool sends_ahead() const override { return true; }

  /// Permanent: pending waits, here and at the peers, throw.
  void close() noexcept;

  /// This rank sends nothing more: pending receives of its peers throw immediately. Their messages
  /// can still be received.
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
    size_t moved = 0;     // of a message being sent, including the header
    bool posted = false;  // a receive was posted; otherwise the memory is our own
    bool done = false;
    bool interrupted = false;
    std::string error;
  };
  using MessagePtr = std::shared_ptr<Message>;
  struct Peer {
    Socket socket;
    std::deque<MessagePtr> sends;
    std::deque<MessagePtr> posted;      // receives without a message yet
    std::deque<MessagePtr> unexpected;  // arrived without a posted receive
    Header header;                      // of the arriving message
    size_t header_read = 0;
    MessagePtr coming;  // nullptr: header incomplete, or no receive posted
    std::string error;
    bool awaits_bytes() const { return coming != nullptr || !posted.empty(); }
  };
  class MessageWork;

  static MessagePtr message_of(at::Tensor piece, int tag);
  Peer& peer(int rank) { return peers_[static_cast<size_t>(rank)]; }
  bool wait(Message& message, std::chrono::milliseconds timeout);
  void interrupt(Message& message);
  void interrupt_all();
  class ProgressGuard;
  void progress(Lock& lock, const Message& mine, std::chrono::steady_clock::time_point deadline);
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
  void notify_progress_thread() {
    if (sleeping_) ring_bell();
  }
  void ring_bell();

  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<Peer> peers_;
  Socket bell_;  // an eventfd that wakes the progress thread
  std::atomic<bool> closed_{false};
  std::atomic<bool> broken_{false};
  bool driving_ = false;   // a thread makes progress; only it touches messages in flight
  bool sleeping_ = false;  // it polls the sockets
  bool finished_ = false;  // some message completed since the last notification
};

}  // namespace tessera::comm
