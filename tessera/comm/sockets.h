#pragma once

#include <chrono>
#include <string>
#include <utility>
#include <vector>

namespace c10d {
class Store;
}  // namespace c10d

/// Stream sockets between the ranks of a group. Inside comm only.
namespace tessera::comm {

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

/// A TCP connection to each other rank, by rank, the own place empty. Each listens at `address`, a
/// number, and says where on the group's store. Nothing at all, on every rank, if one of them
/// cannot listen (its address is empty).
std::vector<Socket> connect_ranks(c10d::Store& store, int rank, int size,
                                  const std::string& address, std::chrono::milliseconds timeout);

}  // namespace tessera::comm
