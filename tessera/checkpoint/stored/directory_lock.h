#pragma once

#include <filesystem>

namespace tessera::checkpoint {

/// An exclusive lock of a directory against other saves on this machine (flock). It ends when it is
/// released, or with the process. On file systems without such locks everyone holds it: there
/// is no protection then.
class DirectoryLock {
 public:
  DirectoryLock() = default;
  DirectoryLock(DirectoryLock&& other) noexcept;
  DirectoryLock& operator=(DirectoryLock&& other) noexcept;
  ~DirectoryLock();

  /// Creates the directory if there is none, and locks it. Not held if another has the lock. Throws
  /// Error if there can be no such directory.
  static DirectoryLock create(const std::filesystem::path& directory);
  /// Locks one that exists. Not held if there is none, or another has the lock.
  static DirectoryLock of(const std::filesystem::path& directory);

  bool held() const { return fd_ >= 0; }

 private:
  explicit DirectoryLock(int fd) : fd_(fd) {}

  int fd_ = -1;
};

}  // namespace tessera::checkpoint
