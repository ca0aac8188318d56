#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>

namespace tessera::files {

/// A file of known size that several processes write concurrently, each its own bytes: mapped and
/// shared. One of them creates it, then all open it.
///
/// Its disk space is reserved at creation: a full disk is an error there, not a signal when the
/// memory is written to.
class MappedOutput {
 public:
  /// Creates or replaces the file, filled with zeros. Throws Error with the system's reason.
  static void create(const std::filesystem::path& path, uint64_t size);
  static std::shared_ptr<MappedOutput> open(const std::filesystem::path& path);
  ~MappedOutput();
  MappedOutput(const MappedOutput&) = delete;
  MappedOutput& operator=(const MappedOutput&) = delete;

  std::span<std::byte> bytes() const { return {data_, size_}; }
  /// Blocks until the data written by this process is on the device.
  void sync();

 private:
  MappedOutput(std::string path, int fd, std::byte* data, size_t size);

  std::string path_;
  int fd_;
  std::byte* data_;
  size_t size_;
};

}  // namespace tessera::files
