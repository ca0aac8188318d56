#include "tessera/checkpoint/stored/directory.h"

#include <fcntl.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <set>
#include <system_error>
#include <utility>

#include "tessera/base/errors.h"
#include "tessera/checkpoint/stored/remove_tree.h"
#include "tessera/checkpoint/stored/spare_files.h"
#include "tessera/dcp/checksums.h"
#include "tessera/dcp/metadata.h"
#include "tessera/dcp/rank_metadata.h"

namespace tessera::checkpoint {
namespace {

namespace fs = std::filesystem;

[[noreturn]] void fail(std::string_view doing, const fs::path& path, int code) {
  throw Error(
      join_text("cannot ", doing, " ", path.string(), ": ", std::generic_category().message(code)));
}

/// "a/b/" and "a/b" are one checkpoint.
fs::path normal(const fs::path& directory) {
  fs::path path = directory.lexically_normal();
  if (!path.has_filename()) path = path.parent_path();
  require(path.has_filename() && path.filename() != "." && path.filename() != "..",
          "a checkpoint needs a directory with a name, not '", directory.string(), "'");
  // The directory is replaced, not the link to it, which may lead to another disk.
  std::error_code dangling;
  if (fs::is_symlink(path, dangling)) {
    const fs::path real = fs::canonical(path, dangling);
    if (!dangling) return real;
  }
  return path;
}

fs::path beside(const fs::path& directory, std::string_view ending) {
  const fs::path path = normal(directory);
  return path.parent_path() / join_text(".", path.filename().string(), ".tessera-", ending);
}

fs::path replaced_path(const fs::path& directory) { return beside(directory, "replaced"); }

fs::path parent_of(const fs::path& directory) {
  const fs::path parent = normal(directory).parent_path();
  return parent.empty() ? fs::path(".") : parent;
}

void rename_or_fail(const fs::path& from, const fs::path& to) {
  if (::rename(from.c_str(), to.c_str()) != 0) fail("rename to " + to.string(), from, errno);
}

/// Both names exist before and after; at no time is one missing.
bool exchange(const fs::path& a, const fs::path& b) {
  return ::renameat2(AT_FDCWD, a.c_str(), AT_FDCWD, b.c_str(), RENAME_EXCHANGE) == 0;
}

void require_only_checkpoint(const fs::path& directory) {
  std::set<fs::path> ranks;
  for (const auto& [rank, name] : dcp::rank_metadata_files(directory)) ranks.insert(name);
  for (const auto& item : fs::directory_iterator(directory)) {
    const fs::path name = item.path().filename();
    const bool known = name == dcp::kMetadataFile || name == dcp::kChecksumFile ||
                       ranks.contains(name) || name.extension() == ".distcp" ||
                       name == ".metadata.tmp" || name.extension() == ".safetensors" ||
                       name == "model.safetensors.index.json";
    require(known && !item.is_directory(), directory.string(), " holds ", name.string(),
            ", which is no part of a checkpoint and would be lost; save to another directory");
  }
}

void remove_quietly(const fs::path& path) noexcept {
  try {
    remove_tree(path);
  } catch (const std::exception&) {  // a leftover; the next save removes it
  }
}

}  // namespace

fs::path saving_path(const fs::path& directory) { return beside(directory, "saving"); }

fs::path readable_directory(const fs::path& directory) {
  std::error_code ignored;
  if (fs::exists(directory, ignored)) return directory;
  const fs::path before = replaced_path(directory);
  require(fs::exists(before, ignored), "there is no checkpoint ", directory.string());
  return before;
}

std::string stamp_of(const fs::path& directory) {
  struct stat found {};
  if (::stat(directory.c_str(), &found) != 0) return "";
  // Inodes are used again; a rename or an exchange sets the time of change.
  return join_text(found.st_ino, " ", found.st_ctim.tv_sec, " ", found.st_ctim.tv_nsec);
}

SavingDirectory::SavingDirectory(const fs::path& directory, Options options)
    : target_(normal(directory)),
      saving_(saving_path(directory)),
      spare_(std::move(options.spare)) {
  std::error_code none;
  require(!fs::is_symlink(target_, none), target_.string(),
          " is a symbolic link that leads nowhere; remove it, or make the directory");
  fs::create_directories(parent_of(directory));
  lock_ = DirectoryLock::create(saving_);
  require(lock_.held(), "another save to ", target_.string(),
          " is running; wait for it, or save to another directory");
  wait_for_removals();  // this save may need the space
  try {
    for (const auto& left : fs::directory_iterator(saving_)) remove_tree(left.path());
    const fs::path before = replaced_path(directory);
    if (fs::exists(before)) {
      if (fs::exists(target_)) {
        remove_tree(before);
      } else {
        rename_or_fail(before, target_);
      }
    }
    if (fs::is_directory(target_)) require_only_checkpoint(target_);
    if (!spare_.empty()) take_spare_files(spare_, saving_, options.ranks);
  } catch (...) {
    remove_quietly(saving_);
    throw;
  }
}

SavingDirectory::~SavingDirectory() {
  if (lock_.held()) remove_quietly(saving_);
}

void SavingDirectory::commit() {
  sync_directory(saving_);
  require(!fs::exists(target_) || fs::is_directory(target_), target_.string(),
          " is a file, not a directory");
  if (!fs::exists(target_)) {
    rename_or_fail(saving_, target_);
    lock_ = {};
    sync_directory(parent_of(target_));
    return;
  }
  // After the exchange it is the one before that a second save must not take for a leftover.
  DirectoryLock before = DirectoryLock::of(target_);
  if (exchange(saving_, target_)) {
    lock_ = {};
    sync_directory(parent_of(target_));
    discard(saving_);
    return;
  }
  const fs::path replaced = replaced_path(target_);
  rename_or_fail(target_, replaced);
  rename_or_fail(saving_, target_);
  lock_ = {};
  sync_directory(parent_of(target_));
  discard(replaced);
}

void SavingDirectory::discard(const fs::path& replaced) const {
  spare_.empty() ? remove_tree_in_background(replaced) : retire(replaced, spare_);
}

void SavingDirectory::commit_file() {
  sync_directory(saving_);
  rename_or_fail(saving_ / target_.filename(), target_);
  sync_directory(parent_of(target_));
}

void remove_leftover(const fs::path& saving) {
  const DirectoryLock lock = DirectoryLock::of(saving);
  if (lock.held()) remove_tree(saving);
}

void sync_directory(const fs::path& directory) {
  const int fd = ::open(directory.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (fd < 0) fail("open", directory, errno);
  const int failed = ::fsync(fd) != 0 ? errno : 0;
  ::close(fd);
  if (failed != 0 && failed != EINVAL) fail("sync", directory, failed);  // EINVAL: not that kind
}

}  // namespace tessera::checkpoint
