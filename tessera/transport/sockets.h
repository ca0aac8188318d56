#pragma once

#include <cerrno>
#include <chrono>
#include <functional>
#include <string>
#include <utility>
#include <vector>

namespace c10d {
class Store;
}  // namespace c10d

/// Stream sockets between the ranks of a group.
namespace tessera::comm {

/// Whether the last socket call failed only because it would block.
inline bool would_block() { return errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR; }

/// Owns a file descriptor; -1: none.
class Socket {
 public:
  Socket() = default;
  explicit Socket(int fd) : fd_(fd) {}
  ~Socket();
  Socket(Socket&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  Socket& operator=(Socket&& other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
  }

  int fd() const { return fd_; }
  explicit operator bool() const { return fd_ >= 0; }

 private:
  int fd_ = -1;
};

struct LinkOptions {
  int rank = 0;
  int size = 1;
  std::string address;  ///< to listen on, numeric
  std::chrono::milliseconds timeout{0};
  std::string secret{};  ///< of the job; "": none (link_handshake.h)
  /// Called about twice a second while waiting; may throw, which ends it.
  std::function<void()> look_around = [] {};
};

/// A TCP connection to each other rank, by rank, the own entry empty. Each rank listens and
/// publishes its address on the group's store. Returns an empty vector, on every rank, if one of
/// them cannot listen (its address is empty). Connections are opened concurrently: foreign
/// connections that send nothing, or something invalid, delay no rank. Throws std::runtime_error
/// naming the ranks that did not connect in time.
std::vector<Socket> connect_ranks(c10d::Store& store, const LinkOptions& options);

}  // namespace tessera::comm
