#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "tessera/files/input_file.h"
#include "tessera/files/mapped_file.h"

namespace tessera::files {

/// Random access to the bytes of a file, or of a part of it, for readers of headers and
/// directories.
class ByteSource {
 public:
  virtual ~ByteSource() = default;
  virtual uint64_t size() const = 0;
  /// `size` bytes from `offset` on, all of them inside; valid until the next call.
  virtual std::span<const std::byte> view(uint64_t offset, uint64_t size) = 0;
};

/// Over a mapped file; views stay valid as long as it is mapped.
class MappedSource final : public ByteSource {
 public:
  explicit MappedSource(std::shared_ptr<const MappedFile> file) : file_(std::move(file)) {}
  uint64_t size() const override { return file_->bytes().size(); }
  std::span<const std::byte> view(uint64_t offset, uint64_t size) override {
    return file_->bytes().subspan(offset, size);
  }

 private:
  std::shared_ptr<const MappedFile> file_;
};

/// Over a part of a file, by read(2): keeps the last two places that were read, each with 4 KiB
/// around it. An archive with a short head and tail is read by two calls.
class ReadSource final : public ByteSource {
 public:
  /// The part must be inside of the file.
  ReadSource(std::shared_ptr<const InputFile> file, uint64_t offset, uint64_t size)
      : file_(std::move(file)), offset_(offset), size_(size) {}
  uint64_t size() const override { return size_; }
  std::span<const std::byte> view(uint64_t offset, uint64_t size) override;

 private:
  struct Window {
    uint64_t offset = 0;
    std::vector<std::byte> bytes;
  };

  std::shared_ptr<const InputFile> file_;
  uint64_t offset_;
  uint64_t size_;
  std::array<Window, 2> windows_;
  size_t oldest_ = 0;
};

}  // namespace tessera::files
