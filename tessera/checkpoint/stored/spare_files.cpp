#include "tessera/checkpoint/stored/spare_files.h"

#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <unistd.h>

#include <system_error>

#include "tessera/base/errors.h"
#include "tessera/checkpoint/stored/remove_tree.h"

namespace tessera::checkpoint {
namespace {

namespace fs = std::filesystem;

constexpr auto kExt4 = 0xEF53;
constexpr auto kXfs = 0x58465342;

bool is_local_disk(int fd) {
  struct statfs system {};
  return ::fstatfs(fd, &system) == 0 && (system.f_type == kExt4 || system.f_type == kXfs);
}

/// "__0_0.distcp"
bool is_rank_file(const fs::path& path) {
  const std::string name = path.filename().string();
  return name.starts_with("__") && name.ends_with("_0.distcp");
}

/// A write lease is granted if no other descriptor or mapping of the file exists, in any process.
bool grants_write_lease(int fd) {
  // An open of the file meanwhile is announced by a signal: by default one that ends the process.
  if (::fcntl(fd, F_SETSIG, SIGURG) != 0) return false;
  if (::fcntl(fd, F_SETLEASE, F_WRLCK) != 0) return false;
  return ::fcntl(fd, F_SETLEASE, F_UNLCK) == 0;
}

}  // namespace

bool is_unshared(const fs::path& file) {
  const int fd = ::open(file.c_str(), O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
  if (fd < 0) return false;
  struct stat status {};
  const bool answer = ::fstat(fd, &status) == 0 && S_ISREG(status.st_mode) &&
                      status.st_nlink == 1 && status.st_uid == ::geteuid() && is_local_disk(fd) &&
                      grants_write_lease(fd);
  ::close(fd);
  return answer;
}

void retire(const fs::path& directory, const fs::path& spare) {
  std::error_code failed;
  for (fs::directory_iterator at(directory, failed), end; !failed && at != end;
       at.increment(failed)) {
    if (!is_rank_file(at->path())) fs::remove(at->path(), failed);
  }
  if (!failed && spare.has_parent_path()) fs::create_directories(spare.parent_path(), failed);
  if (failed || ::rename(directory.c_str(), spare.c_str()) != 0) {
    remove_tree_in_background(directory);
  }
}

void take_spare_files(const fs::path& spare, const fs::path& to, int ranks) {
  if (!fs::exists(spare)) return;
  require(fs::is_directory(spare), spare.string(), " is no directory of spare files");
  for (const auto& item : fs::directory_iterator(spare)) {
    require(is_rank_file(item.path()) && item.is_regular_file(), spare.string(), " holds ",
            item.path().filename().string(),
            ", which is no spare file; name a directory that is used for nothing else");
  }
  std::error_code none;  // two saves may be here at once: each file is moved by one of them
  for (int rank = 0; rank < ranks; ++rank) {
    const std::string name = join_text("__", rank, "_0.distcp");
    if (is_unshared(spare / name)) fs::rename(spare / name, to / name, none);
  }
  for (const auto& item : fs::directory_iterator(spare)) fs::remove(item.path(), none);
  fs::remove(spare, none);
}

}  // namespace tessera::checkpoint
