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

/// Whether the last call on a socket failed only because it cannot go on now.
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
  std::string address;  ///< to listen at, a number
  std::chrono::milliseconds timeout{0};
  std::string secret{};  ///< of the job; "": none (link_handshake.h)
  /// Called about twice a second while it waits; may throw, which ends it.
  std::function<void()> look_around = [] {};
};

/// A TCP connection to each other rank, by rank, the own place empty. Each listens and says where
/// on the group's store. Nothing at all, on every rank, if one of them cannot listen (its address
/// is empty). Connections are opened side by side: strangers that connect and say nothing, or what
/// no rank says, delay no rank. Throws std::runtime_error that names who did not connect in time.
std::vector<Socket> connect_ranks(c10d::Store& store, const LinkOptions& options);

}  // namespace tessera::comm
