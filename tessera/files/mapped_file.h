#pragma once

#include <cstddef>
#include <filesystem>
#include <memory>
#include <span>
#include <string>

#include "tessera/base/api.h"

namespace tessera::files {

/// A whole file mapped into memory. Pages are read on first access and shared with other processes
/// that map the file. Writes go to a private copy and never to the file, so a tensor over mapped
/// bytes may be written to.
///
/// The file must not be truncated while it is mapped: accessing a lost page raises SIGBUS.
class TESSERA_API MappedFile {
 public:
  /// Throws InvalidArgument with the path and the system's reason.
  static std::shared_ptr<const MappedFile> open(const std::filesystem::path& path);
  ~MappedFile();
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;

  std::span<const std::byte> bytes() const { return {data_, size_}; }
  std::span<std::byte> writable_bytes() const { return {data_, size_}; }
  const std::string& path() const { return path_; }

  /// Copies a part of bytes() by read(2), without touching the mapping: reading a large file once
  /// then neither keeps its pages resident nor takes a page fault for each. Throws
  /// Error if the file has become shorter.
  void read(std::span<const std::byte> part, std::byte* to) const;

  /// Starts to read a part of bytes() from the device and does not wait for it.
  void prefetch(std::span<const std::byte> part) const;

 private:
  MappedFile(std::string path, int fd, std::byte* data, size_t size);

  std::string path_;
  int fd_;
  std::byte* data_;
  size_t size_;
};

}  // namespace tessera::files
