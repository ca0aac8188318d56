#include "tessera/checkpoint/stored/directory_lock.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <system_error>
#include <utility>

#include "tessera/base/errors.h"

namespace tessera::checkpoint {
namespace {

namespace fs = std::filesystem;

/// Whether the path still names what the descriptor has open.
bool is_at(int fd, const fs::path& path) {
  struct stat opened {};
  struct stat named {};
  return ::fstat(fd, &opened) == 0 && ::lstat(path.c_str(), &named) == 0 &&
         opened.st_ino == named.st_ino && opened.st_dev == named.st_dev;
}

}  // namespace

DirectoryLock::DirectoryLock(DirectoryLock&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}

DirectoryLock& DirectoryLock::operator=(DirectoryLock&& other) noexcept {
  std::swap(fd_, other.fd_);
  return *this;
}

DirectoryLock::~DirectoryLock() {
  if (fd_ < 0) return;
  ::flock(fd_, LOCK_UN);  // a forked child may have the descriptor too
  ::close(fd_);
}

DirectoryLock DirectoryLock::of(const fs::path& directory) {
  const int fd = ::open(directory.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
  if (fd < 0) return {};
  DirectoryLock lock(fd);
  const bool locked = ::flock(fd, LOCK_EX | LOCK_NB) == 0 || errno != EWOULDBLOCK;
  // Between the two calls another save may have removed it, or put it in place.
  if (locked && is_at(fd, directory)) return lock;
  return {};
}

DirectoryLock DirectoryLock::create(const fs::path& directory) {
  constexpr int kAttempts = 3;
  for (int i = 0; i < kAttempts; ++i) {
    if (::mkdir(directory.c_str(), 0777) != 0) {
      const int code = errno;
      std::error_code ignored;
      const bool is_other =
          code == EEXIST && !fs::is_directory(fs::symlink_status(directory, ignored));
      if (is_other && ::unlink(directory.c_str()) == 0) continue;
      if (code != EEXIST || is_other) {
        throw Error(join_text("cannot create ", directory.string(), ": ",
                              std::generic_category().message(code)));
      }
    }
    DirectoryLock lock = of(directory);
    if (lock.held() || fs::exists(directory)) return lock;
  }
  return {};
}

}  // namespace tessera::checkpoint
