#pragma once

#include <array>
#include <cstdint>
#include <string>

#include "tessera/liveness/sha256.h"
#include "tessera/transport/sockets.h"

/// Mutual authentication of a new connection: proves that both ends are ranks of one group.
///
///   connector -> listener   "tsl2", rank, a random number c
///   listener -> connector   a random number l, HMAC(key, "listener" rank c l)
///   connector -> listener   HMAC(key, "connector" rank c l)
///   listener -> connector   "k"
///
/// The last message tells the connector that the listener keeps the connection. A listener closes
/// connections that take too long, or to make room; without an answer the connector would count a
/// connection as open that the listener closed while the proof was on its way.
///
/// The key is derived from the job's secret and from what the listener wrote to the store for this
/// group. So a foreign process cannot connect even if it can read the store, and traffic recorded
/// from another connection cannot be replayed. Without a secret, any process that can read the
/// store can connect. Later messages are neither encrypted nor signed.
///
/// Non-blocking: many connections are opened concurrently, and silent ones delay no rank.
namespace tessera::comm {

class LinkHandshake {
 public:
  /// The connecting end, to `peer`; `socket` is connecting in non-blocking mode.
  static LinkHandshake to(int peer, int my_rank, Socket socket, const Digest& key);
  /// The accepting end.
  static LinkHandshake from_anyone(Socket socket, const Digest& key);

  enum class State { under_way, done, failed };

  /// Sends and receives as much as possible without blocking.
  State progress();
  /// The events to poll for.
  int16_t events() const;
  int fd() const { return socket_.fd(); }
  /// The rank at the other end; for an accepted connection, valid once done.
  int peer() const { return peer_; }
  /// Whether an accepted connection has sent its first message.
  bool has_greeted() const { return phase_ != Phase::hello; }
  /// Why it failed.
  const std::string& error() const { return error_; }
  /// Whether the other end closed an established connection: it may be retried.
  bool was_dropped() const { return dropped_; }
  Socket take_socket() { return std::move(socket_); }

 private:
  enum class Phase { connecting, hello, challenge, answer, confirmation, end };
  static constexpr size_t kNumber = 16;

  LinkHandshake(Socket socket, const Digest& key);
  State fail(std::string why);
  State finish_connect();
  bool send_rest();
  bool read_rest(size_t size);
  bool handle();
  Digest proof(const char* whose) const;
  size_t expected_bytes() const;

  Socket socket_;
  Digest key_;
  bool connector_ = false;
  Phase phase_ = Phase::hello;  ///< the next message, in either direction
  int peer_ = -1;
  int32_t connector_rank_ = -1;
  std::string mine_;     ///< my random number
  std::string theirs_;   ///< the peer's
  std::string to_send_;  ///< not sent yet
  std::string read_;     ///< received part of the next message
  std::string error_;
  bool dropped_ = false;
};

/// Cryptographically secure random bytes.
std::string random_bytes(size_t count);

}  // namespace tessera::comm
