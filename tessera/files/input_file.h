#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>

#include "tessera/base/api.h"

namespace tessera::files {

/// A regular file that is open for reading at any position. Unlike a mapping it takes no page fault
/// for each page, keeps none of them in the memory of this process, and a file that another program
/// truncates meanwhile is an error instead of SIGBUS.
///
/// Files that are not in the page cache are read sequentially by the kernel's own read-ahead, which
/// allocates large folios: measured, a quarter of the CPU time of POSIX_FADV_WILLNEED, which
/// allocates single pages.
class TESSERA_API InputFile {
 public:
  /// Throws InvalidArgument with the path and the system's reason.
  static std::shared_ptr<const InputFile> open(const std::filesystem::path& path);
  ~InputFile();
  InputFile(const InputFile&) = delete;
  InputFile& operator=(const InputFile&) = delete;

  uint64_t size() const { return size_; }  ///< when it was opened
  int descriptor() const { return fd_; }
  const std::string& path() const { return path_; }

  /// Fills `to` with the bytes from `offset` on. Throws Error with the path if the file has become
  /// shorter, or with the system's reason.
  void read(uint64_t offset, std::span<std::byte> to) const;

 private:
  InputFile(std::string path, int fd, uint64_t size);

  std::string path_;
  int fd_;
  uint64_t size_;
};

}  // namespace tessera::files
