#include "tessera/checkpoint/stored/remove_tree.h"

#include <fcntl.h>
#include <ftw.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "tessera/base/errors.h"

namespace tessera::checkpoint {
namespace {

namespace fs = std::filesystem;

/// Files whose last name is removed while a page of them is mapped: their space is freed when that
/// is unmapped. A child that this process forks meanwhile would inherit a descriptor, and with it
/// the space; a mapping need not be inherited.
class HeldFiles {
 public:
  HeldFiles() = default;
  HeldFiles(HeldFiles&& other) noexcept : pages_(std::exchange(other.pages_, {})) {}
  ~HeldFiles() {
    for (void* const page : pages_) ::munmap(page, 1);
  }
  HeldFiles(const HeldFiles&) = delete;
  HeldFiles& operator=(const HeldFiles&) = delete;
  HeldFiles& operator=(HeldFiles&&) = delete;

  /// A file that cannot be mapped is freed when its name is removed.
  void add(const fs::path& file) {
    const int fd = ::open(file.c_str(), O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
    if (fd < 0) return;
    void* const page = ::mmap(nullptr, 1, PROT_READ, MAP_SHARED, fd, 0);
    ::close(fd);
    if (page == MAP_FAILED) return;
    ::madvise(page, 1, MADV_DONTFORK);
    pages_.push_back(page);
  }

 private:
  std::vector<void*> pages_;
};

/// Of this process: a forked child has the number, and not the threads.
struct Pending {
  std::atomic<pid_t> process = 0;
  std::atomic<int> count = 0;
};

Pending& pending_removals() {
  static Pending pending;
  if (pending.process.exchange(::getpid()) != ::getpid()) pending.count = 0;
  return pending;
}

void finish_removal() {
  Pending& pending = pending_removals();
  --pending.count;
  pending.count.notify_all();
}

}  // namespace

void remove_tree(const fs::path& path) {
  constexpr int kDescriptors = 16;
  const auto remove_one = [](const char* name, const struct stat*, int, struct FTW*) {
    return ::remove(name);
  };
  if (::nftw(path.c_str(), remove_one, kDescriptors, FTW_DEPTH | FTW_PHYS) != 0 &&
      errno != ENOENT) {
    throw Error(
        join_text("cannot remove ", path.string(), ": ", std::generic_category().message(errno)));
  }
}

void remove_tree_in_background(const fs::path& path) {
  HeldFiles files;
  std::error_code ignored;
  for (fs::directory_iterator at(path, ignored), end; !ignored && at != end;
       at.increment(ignored)) {
    if (fs::is_regular_file(fs::symlink_status(at->path(), ignored))) files.add(at->path());
  }
  remove_tree(path);
  ++pending_removals().count;
  try {
    std::thread([files = std::move(files)]() mutable {
      { const HeldFiles freed = std::move(files); }
      finish_removal();
    }).detach();
  } catch (const std::system_error&) {  // no more threads: freed here
    finish_removal();
  }
}

void wait_for_removals() {
  std::atomic<int>& count = pending_removals().count;
  for (int left = count; left > 0; left = count) count.wait(left);
}

}  // namespace tessera::checkpoint
