#include "tessera/transport/socket_transport.h"

#include <sys/eventfd.h>
#include <sys/poll.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <stdexcept>

#include "tessera/base/errors.h"
#include "tessera/base/text.h"
#include "tessera/collective/block_pool.h"
#include "tessera/collective/deadline.h"
#include "tessera/collective/timed_out.h"
#include "tessera/transport/descriptors.h"

namespace tessera::comm {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

/// Per system call.
constexpr size_t kMostPieces = 32;

/// Per peer, before the other peers are served and the progress thread checks its own message.
constexpr int kMostCalls = 16;

/// An upper limit on message sizes: more than this machine's memory cannot be valid.
uint64_t most_bytes() {
  static const uint64_t memory =
      static_cast<uint64_t>(sysconf(_SC_PHYS_PAGES)) * static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
  return memory;
}

}  // namespace

/// The handle of a message for Exchange.
class SocketTransport::MessageWork final : public c10d::Work {
 public:
  MessageWork(std::shared_ptr<SocketTransport> transport, MessagePtr message)
      : transport_(std::move(transport)), message_(std::move(message)) {}

  bool wait(milliseconds timeout) override { return transport_->wait(*message_, timeout); }
  void abort() override { transport_->interrupt(*message_); }
  std::exception_ptr exception() const override {
    const Lock lock(transport_->mutex_);
    if (message_->error.empty()) return nullptr;
    return std::make_exception_ptr(std::runtime_error(message_->error));
  }

 private:
  std::shared_ptr<SocketTransport> transport_;
  MessagePtr message_;
};

SocketTransport::SocketTransport(std::vector<Socket> sockets)
    : bell_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
  if (!bell_) throw NotSupported("a connection of ranks: eventfd: " + errno_text(errno));
  peers_.resize(sockets.size());
  for (size_t i = 0; i < sockets.size(); ++i) peers_[i].socket = std::move(sockets[i]);
}

SocketTransport::MessagePtr SocketTransport::message_of(at::Tensor piece, int tag) {
  auto message = std::make_shared<Message>();
  message->data = static_cast<char*>(piece.data_ptr());
  message->header = {piece.nbytes(), tag};
  message->piece = std::move(piece);
  return message;
}

std::deque<SocketTransport::MessagePtr>::iterator SocketTransport::find_tag(
    std::deque<MessagePtr>& among, int64_t tag) {
  return std::ranges::find_if(among,
                              [tag](const MessagePtr& other) { return other->header.tag == tag; });
}

c10::intrusive_ptr<c10d::Work> SocketTransport::send_piece(at::Tensor piece, int to, int tag) {
  MessagePtr message = message_of(std::move(piece), tag);
  {
    const Lock lock(mutex_);
    peer(to).sends.push_back(message);
    if (!peer(to).error.empty()) fail(peer(to), peer(to).error);
    notify_progress_thread();
  }
  return c10::make_intrusive<MessageWork>(shared_from_this(), std::move(message));
}

c10::intrusive_ptr<c10d::Work> SocketTransport::receive_piece(at::Tensor piece, int from, int tag) {
  MessagePtr message = message_of(std::move(piece), tag);
  message->posted = true;
  {
    const Lock lock(mutex_);
    Peer& sender = peer(from);
    sender.posted.push_back(message);
    const auto come = find_tag(sender.unexpected, tag);
    if (come != sender.unexpected.end() && fits(sender, *message, (*come)->header)) {
      hand_over(**come, *message);
      sender.unexpected.erase(come);
      sender.posted.pop_back();
    } else if (!sender.error.empty()) {
      fail(sender, sender.error);
    } else {
      notify_progress_thread();
    }
  }
  return c10::make_intrusive<MessageWork>(shared_from_this(), std::move(message));
}

void SocketTransport::ring_bell() {
  const uint64_t one = 1;
  [[maybe_unused]] const auto written = write(bell_.fd(), &one, sizeof(one));
}

void SocketTransport::close() noexcept {
  closed_ = true;
  for (const Peer& peer : peers_) {
    if (peer.socket) shutdown(peer.socket.fd(), SHUT_RDWR);
  }
}

void SocketTransport::end_sending() noexcept {
  const Lock lock(mutex_);
  for (const Peer& peer : peers_) {
    if (peer.socket && peer.sends.empty()) shutdown(peer.socket.fd(), SHUT_WR);
  }
}

void SocketTransport::interrupt(Message& message) {
  const Lock lock(mutex_);
  message.interrupted = true;
  changed_.notify_all();
  // Even if the progress thread is awake: before it sleeps it checks the queues, but not this.
  ring_bell();
}

void SocketTransport::interrupt_all() {
  for (Peer& peer : peers_) {
    for (const auto* queue : {&peer.sends, &peer.posted}) {
      for (const MessagePtr& message : *queue) message->interrupted = true;
    }
    if (peer.coming != nullptr) peer.coming->interrupted = true;
  }
  changed_.notify_all();
  ring_bell();
}

bool SocketTransport::wait(Message& message, milliseconds timeout) {
  const auto deadline = deadline_after(timeout);
  Lock lock(mutex_);
  while (!message.done) {
    if (std::exchange(message.interrupted, false)) return false;
    if (Clock::now() >= deadline) throw TimedOut(timeout);
    if (driving_) {
      changed_.wait_until(lock, deadline);
    } else {
      progress(lock, message, deadline);
    }
  }
  if (!message.error.empty()) throw std::runtime_error(message.error);
  return true;
}

/// Held by the one thread that makes progress.
class SocketTransport::ProgressGuard {
 public:
  explicit ProgressGuard(SocketTransport& transport) : transport_(transport) {
    transport_.driving_ = true;
  }
  ~ProgressGuard() {
    transport_.driving_ = false;
    transport_.changed_.notify_all();
  }
  ProgressGuard(const ProgressGuard&) = delete;
  ProgressGuard& operator=(const ProgressGuard&) = delete;

 private:
  SocketTransport& transport_;
};

bool SocketTransport::move_some(Lock& lock) {
  bool moved = false;
  for (Peer& peer : peers_) {
    if (!peer.socket) continue;
    moved = send_queued(peer, lock) || moved;
    moved = read_arrived(peer, lock) || moved;
  }
  return moved;
}

/// Makes progress, or waits until some is possible. Returns so that the caller can check its own
/// message, also after an interrupt or its timeout while others' messages are still in flight;
/// another waiting thread may continue.
void SocketTransport::progress(Lock& lock, const Message& mine, Clock::time_point deadline) {
  const ProgressGuard guard(*this);
  while (!std::exchange(finished_, false)) {
    if (mine.interrupted) return;
    if (!move_some(lock)) return await_sockets(lock, deadline);
    if (Clock::now() >= deadline) return;
  }
}

void SocketTransport::progress_once() noexcept {
  try {
    Lock lock(mutex_);
    if (driving_) return;
    const ProgressGuard guard(*this);
    move_some(lock);
  } catch (const std::exception&) {  // reported to the waiter of the message that cannot be moved
  }
}

void SocketTransport::await_sockets(Lock& lock, Clock::time_point deadline) {
  std::vector<pollfd> waiting = {{bell_.fd(), POLLIN, 0}};
  for (const Peer& peer : peers_) {
    if (!peer.error.empty()) continue;
    const int wanted = (peer.sends.empty() ? 0 : POLLOUT) | (peer.awaits_bytes() ? POLLIN : 0);
    if (wanted != 0) waiting.push_back({peer.socket.fd(), static_cast<int16_t>(wanted), 0});
  }
  const auto left = std::chrono::ceil<milliseconds>(deadline - Clock::now());
  sleeping_ = true;
  lock.unlock();
  poll(waiting.data(), waiting.size(),
       static_cast<int>(std::clamp<int64_t>(left.count(), 0, 60'000)));
  if (waiting[0].revents != 0) {
    uint64_t rung = 0;
    [[maybe_unused]] const auto got = read(bell_.fd(), &rung, sizeof(rung));
  }
  lock.lock();
  sleeping_ = false;
}

bool SocketTransport::send_queued(Peer& peer, Lock& lock) {
  bool any = false;
  for (int calls = 0; calls < kMostCalls && !peer.sends.empty() && peer.error.empty(); ++calls) {
    std::array<iovec, kMostPieces> pieces;
    std::vector<MessagePtr> leaving;  // kept alive while others may complete them
    size_t count = 0;
    size_t offered = 0;
    for (const MessagePtr& message : peer.sends) {
      if (count + 2 > pieces.size()) break;
      leaving.push_back(message);
      const size_t before = message->moved;
      constexpr size_t kHeader = sizeof(Header);
      if (before < kHeader) {
        pieces[count++] = {reinterpret_cast<char*>(&message->header) + before, kHeader - before};
      }
      const size_t data = before > kHeader ? before - kHeader : 0;
      pieces[count++] = {message->data + data, message->header.bytes - data};
      offered += kHeader + message->header.bytes - before;
    }
    msghdr call{};
    call.msg_iov = pieces.data();
    call.msg_iovlen = count;
    lock.unlock();
    const ssize_t sent = sendmsg(peer.socket.fd(), &call, MSG_DONTWAIT | MSG_NOSIGNAL);
    const bool later = sent < 0 && would_block();
    const std::string why = sent < 0 && !later ? std::strerror(errno) : "";
    lock.lock();
    if (later || !peer.error.empty()) break;
    if (sent < 0) {
      fail(peer, join_text("the link broke: ", why));
      return true;
    }
    any = true;
    for (auto left = static_cast<size_t>(sent); left > 0;) {
      Message& message = *peer.sends.front();
      const size_t part = std::min(left, sizeof(Header) + message.header.bytes - message.moved);
      message.moved += part;
      left -= part;
      if (message.moved < sizeof(Header) + message.header.bytes) break;
      finish(message);
      peer.sends.pop_front();
    }
    if (static_cast<size_t>(sent) < offered) break;
  }
  return any;
}

/// Reads the rest of the arriving message and the header of the next one in one system call.
bool SocketTransport::read_arrived(Peer& peer, Lock& lock) {
  bool any = false;
  for (int calls = 0; calls < kMostCalls; ++calls) {
    const bool named = peer.coming == nullptr && peer.header_read == sizeof(Header);
    if (named && !peer.posted.empty()) begin_message(peer);
    if (!peer.awaits_bytes() || !peer.error.empty()) break;
    std::array<iovec, 2> pieces;
    size_t count = 0;
    size_t asked = 0;
    const MessagePtr coming = peer.coming;  // kept alive while others may complete it
    if (coming != nullptr) {
      Message& message = *coming;
      asked = message.header.bytes - message.moved;
      pieces[count++] = {message.data + message.moved, asked};
    }
    pieces[count++] = {reinterpret_cast<char*>(&peer.header) + peer.header_read,
                       sizeof(Header) - peer.header_read};
    asked += pieces[count - 1].iov_len;
    msghdr call{};
    call.msg_iov = pieces.data();
    call.msg_iovlen = count;
    lock.unlock();
    const ssize_t got = recvmsg(peer.socket.fd(), &call, MSG_DONTWAIT);
    const bool later = got < 0 && would_block();
    const std::string why = got == 0 ? "closed by the peer" : got < 0 ? std::strerror(errno) : "";
    lock.lock();
    if (later || !peer.error.empty()) break;
    if (got <= 0) {
      fail(peer, join_text("the link broke: ", why));
      return true;
    }
    any = true;
    take(peer, static_cast<size_t>(got));
    if (static_cast<size_t>(got) < asked) break;
  }
  return any;
}

/// Accounts for bytes that were read into the arriving message and the header after it.
void SocketTransport::take(Peer& peer, size_t bytes) {
  if (peer.coming != nullptr) {
    Message& message = *peer.coming;
    const size_t part = std::min(bytes, message.header.bytes - message.moved);
    message.moved += part;
    bytes -= part;
    if (message.moved == message.header.bytes) end_message(peer);
  }
  peer.header_read += bytes;
}

void SocketTransport::end_message(Peer& peer) {
  const MessagePtr message = std::exchange(peer.coming, nullptr);
  if (message->posted) {
    finish(*message);
    return;
  }
  const auto wanted = find_tag(peer.posted, message->header.tag);  // posted meanwhile
  if (wanted == peer.posted.end()) {
    peer.unexpected.push_back(message);
  } else if (fits(peer, **wanted, message->header)) {
    hand_over(*message, **wanted);
    peer.posted.erase(wanted);
  }
}

/// Finds the destination of the message whose header is complete.
void SocketTransport::begin_message(Peer& peer) {
  const auto posted = find_tag(peer.posted, peer.header.tag);
  if (posted == peer.posted.end() && peer.header.bytes > most_bytes()) {
    fail(peer,
         join_text(
             "the peer announces a message of ", peer.header.bytes,
             " bytes, more than this machine's memory: the peer does not follow the protocol"));
  } else if (posted == peer.posted.end()) {
    const auto bytes = static_cast<int64_t>(peer.header.bytes);
    peer.coming = message_of(pooled_empty({bytes}, at::kByte), static_cast<int>(peer.header.tag));
  } else if (fits(peer, **posted, peer.header)) {
    peer.coming = *posted;
    peer.posted.erase(posted);
  }
  peer.header_read = 0;  // not earlier: the allocation may fail
}

/// The tag encodes the size too, but in few bits.
bool SocketTransport::fits(Peer& peer, const Message& expected, const Header& come) {
  if (expected.header.bytes == come.bytes) return true;
  fail(peer, join_text("the peer sends ", come.bytes, " bytes where ", expected.header.bytes,
                       " are expected"));
  return false;
}

void SocketTransport::hand_over(const Message& come, Message& posted) {
  std::memcpy(posted.data, come.data, come.header.bytes);
  finish(posted);
}

void SocketTransport::fail(Peer& peer, const std::string& why) {
  const std::string reason = closed_ ? "this rank closed its links" : why;
  const bool first = peer.error.empty();
  peer.error = reason;
  const auto end = [&](Message& message) {
    message.error = reason;
    finish(message);
  };
  for (auto* queue : {&peer.sends, &peer.posted}) {
    for (const MessagePtr& message : *queue) end(*message);
    queue->clear();
  }
  if (peer.coming != nullptr) end(*peer.coming);
  peer.coming.reset();
  if (!first) return;
  broken_ = true;
  interrupt_all();
}

}  // namespace tessera::comm
