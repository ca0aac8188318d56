#pragma once

#include <cstddef>
#include <filesystem>
#include <memory>
#include <span>
#include <string>

#include "tessera/base/api.h"
#include "tessera/files/input_file.h"

namespace tessera::files {

/// A whole file mapped into memory. Pages are read on first access and shared with other processes
/// that map the file. Writes go to a private copy and never to the file, so a tensor over mapped
/// bytes may be written to.
///
/// The file must not be truncated while it is mapped: accessing a lost page raises SIGBUS. Files
/// that are only read have InputFile.
class TESSERA_API MappedFile {
 public:
  /// Throws InvalidArgument with the path and the system's reason.
  static std::shared_ptr<const MappedFile> open(const std::filesystem::path& path);
  ~MappedFile();
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;

  std::span<const std::byte> bytes() const { return {data_, size_}; }
  const std::string& path() const { return file_->path(); }

  /// Copies a part of bytes() by read(2), without touching the mapping: reading a large file once
  /// then neither keeps its pages resident nor takes a page fault for each.
  void read(std::span<const std::byte> part, std::byte* to) const;

 private:
  MappedFile(std::shared_ptr<const InputFile> file, std::byte* data);

  std::shared_ptr<const InputFile> file_;
  std::byte* data_;
  size_t size_;
};

}  // namespace tessera::files
