#include "tessera/transport/link_handshake.h"

#include <sys/poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <random>
#include <utility>

#include "tessera/base/text.h"
#include "tessera/transport/descriptors.h"

namespace tessera::comm {
namespace {

constexpr std::string_view kMagic = "tsl2";
constexpr std::string_view kKept = "k";

}  // namespace

std::string random_bytes(size_t count) {
  std::random_device random;  // the kernel's
  std::string bytes;
  while (bytes.size() < count) bytes += static_cast<char>(random());
  return bytes;
}

LinkHandshake::LinkHandshake(Socket socket, const Digest& key)
    : socket_(std::move(socket)), key_(key), mine_(random_bytes(kNumber)) {}

LinkHandshake LinkHandshake::to(int peer, int my_rank, Socket socket, const Digest& key) {
  LinkHandshake out(std::move(socket), key);
  out.connector_ = true;
  out.peer_ = peer;
  out.connector_rank_ = my_rank;
  out.phase_ = Phase::connecting;
  return out;
}

LinkHandshake LinkHandshake::from_anyone(Socket socket, const Digest& key) {
  return {std::move(socket), key};
}

LinkHandshake::State LinkHandshake::fail(std::string why) {
  error_ = std::move(why);
  return State::failed;
}

Digest LinkHandshake::proof(const char* whose) const {
  const std::string& connector = connector_ ? mine_ : theirs_;
  const std::string& listener = connector_ ? theirs_ : mine_;
  return hmac_sha256(bytes_view(key_),
                     join_text(whose, " ", connector_rank_, " ", connector, listener));
}

LinkHandshake::State LinkHandshake::finish_connect() {
  pollfd connecting{socket_.fd(), POLLOUT, 0};
  if (poll(&connecting, 1, 0) != 1) return State::under_way;
  int error = 0;
  socklen_t size = sizeof(error);
  getsockopt(socket_.fd(), SOL_SOCKET, SO_ERROR, &error, &size);
  if (error != 0) return fail(errno_text(error));
  to_send_ = kMagic;
  to_send_.append(reinterpret_cast<const char*>(&connector_rank_), sizeof(connector_rank_));
  to_send_ += mine_;
  phase_ = Phase::challenge;
  return State::under_way;
}

size_t LinkHandshake::expected_bytes() const {
  switch (phase_) {
    case Phase::hello:
      return kMagic.size() + sizeof(connector_rank_) + kNumber;
    case Phase::challenge:
      return kNumber + sizeof(Digest);
    case Phase::answer:
      return sizeof(Digest);
    case Phase::confirmation:
      return kKept.size();
    case Phase::connecting:
    case Phase::end:
      break;
  }
  return 0;
}

/// Returns false if the connection broke.
bool LinkHandshake::send_rest() {
  while (!to_send_.empty()) {
    const ssize_t sent =
        send(socket_.fd(), to_send_.data(), to_send_.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent < 0 && errno == EINTR) continue;
    if (sent < 0) return would_block();
    to_send_.erase(0, static_cast<size_t>(sent));
  }
  return true;
}

/// Reads exactly `size` bytes: what follows belongs to later readers. Returns false if the
/// connection broke.
bool LinkHandshake::read_rest(size_t size) {
  while (read_.size() < size) {
    std::array<char, 64> part;
    const ssize_t got =
        recv(socket_.fd(), part.data(), std::min(part.size(), size - read_.size()), MSG_DONTWAIT);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return would_block();
    if (got == 0) {
      errno = ECONNRESET;
      return false;
    }
    read_.append(part.data(), static_cast<size_t>(got));
  }
  return true;
}

/// Processes a complete message; returns false if it is invalid.
bool LinkHandshake::handle() {
  const std::string message = std::exchange(read_, {});
  const std::string_view text = message;
  switch (phase_) {
    case Phase::hello:
      if (!text.starts_with(kMagic)) return false;
      std::memcpy(&connector_rank_, text.data() + kMagic.size(), sizeof(connector_rank_));
      theirs_ = text.substr(kMagic.size() + sizeof(connector_rank_));
      to_send_ = mine_ + std::string(bytes_view(proof("listener")));
      phase_ = Phase::answer;
      return true;
    case Phase::challenge:
      theirs_ = text.substr(0, kNumber);
      if (!same_digest(text.substr(kNumber), bytes_view(proof("listener")))) return false;
      to_send_ = bytes_view(proof("connector"));
      phase_ = Phase::confirmation;
      return true;
    case Phase::answer:
      if (!same_digest(text, bytes_view(proof("connector")))) return false;
      peer_ = connector_rank_;
      to_send_ = kKept;
      phase_ = Phase::end;
      return true;
    case Phase::confirmation:
      phase_ = Phase::end;
      return text == kKept;
    case Phase::connecting:
    case Phase::end:
      break;
  }
  return false;
}

LinkHandshake::State LinkHandshake::progress() {
  if (phase_ == Phase::connecting && finish_connect() == State::failed) return State::failed;
  while (phase_ != Phase::connecting) {
    if (!send_rest()) {
      dropped_ = true;
      return fail(errno_text(errno));
    }
    if (!to_send_.empty()) return State::under_way;
    if (phase_ == Phase::end) return State::done;
    const size_t size = expected_bytes();
    if (!read_rest(size)) {
      dropped_ = true;
      return fail(errno_text(errno));
    }
    if (read_.size() < size) return State::under_way;
    if (!handle()) return fail("the other end is not a rank of this group");
  }
  return State::under_way;
}

int16_t LinkHandshake::events() const {
  return phase_ == Phase::connecting || !to_send_.empty() ? POLLOUT : POLLIN;
}

}  // namespace tessera::comm
