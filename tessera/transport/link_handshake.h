#pragma once

#include <array>
#include <cstdint>
#include <string>

#include "tessera/liveness/sha256.h"
#include "tessera/transport/sockets.h"

/// How the two ends of a new connection find out that both are ranks of one group.
///
///   connector -> listener   "tsl1", rank, a random number c
///   listener -> connector   a random number l, HMAC(key, "listener" rank c l)
///   connector -> listener   HMAC(key, "connector" rank c l)
///
/// The key is made of the job's secret and of what the listener wrote to the store for this group,
/// so a stranger cannot take part even if it can read the store, and what it overheard of another
/// connection is of no use. Without a secret, who can read the store can. What is sent later over
/// the connection is neither encrypted nor signed.
///
/// Nothing here blocks: many connections are opened side by side, and silent ones delay no rank.
namespace tessera::comm {

class LinkHandshake {
 public:
  /// Of this end's connection to `peer`; `socket` connects, without blocking.
  static LinkHandshake to(int peer, int my_rank, Socket socket, const Digest& key);
  /// Of one that was accepted.
  static LinkHandshake from_anyone(Socket socket, const Digest& key);

  enum class State { under_way, done, failed };

  /// Moves what can be moved.
  State progress();
  /// What to poll for.
  int16_t events() const;
  int fd() const { return socket_.fd(); }
  /// The rank at the other end; of one that was accepted, once it is done.
  int peer() const { return peer_; }
  /// Why it failed.
  const std::string& error() const { return error_; }
  /// Whether the other end closed it after it was open: it may be tried again.
  bool was_dropped() const { return dropped_; }
  Socket take_socket() { return std::move(socket_); }

 private:
  enum class Phase { connecting, hello, challenge, answer, end };
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
  Phase phase_ = Phase::hello;  ///< the message that comes or goes next
  int peer_ = -1;
  int32_t connector_rank_ = -1;
  std::string mine_;     ///< the random number
  std::string theirs_;   ///< the other's
  std::string to_send_;  ///< not sent yet
  std::string read_;     ///< of the message that comes
  std::string error_;
  bool dropped_ = false;
};

/// Random bytes that cannot be guessed.
std::string random_bytes(size_t count);

}  // namespace tessera::comm
