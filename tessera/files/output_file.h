#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "tessera/files/block_sums.h"
#include "tessera/files/block_writer.h"

namespace tessera::files {

/// A file that is written sequentially. Small writes are buffered; every system error (e.g. a full
/// disk) throws an Error that names the path and the reason.
///
/// The destructor closes without error reporting: call `close()` for data that must be on disk.
class OutputFile {
 public:
  struct Options {
    BlockSums* sums = nullptr;  ///< gets every byte that is written
    /// For large files that are synced: written by a BlockWriter, past the page cache where the
    /// file system allows it. Not with `skip`.
    bool direct = false;
    /// A file that is there is overwritten where it is, and truncated when it is closed: its blocks
    /// are not allocated anew. Until then its end is that of the old file.
    bool keep_blocks = false;
  };

  /// Creates the file, or truncates it.
  OutputFile(const std::filesystem::path& path, Options options);
  explicit OutputFile(const std::filesystem::path& path) : OutputFile(path, Options()) {}
  ~OutputFile();
  OutputFile(const OutputFile&) = delete;
  OutputFile& operator=(const OutputFile&) = delete;

  void write(std::span<const std::byte> bytes);
  void write(std::string_view text);
  /// Leaves `bytes` to be written by `write_at`, and returns where they start. Not with `sums`.
  uint64_t skip(uint64_t bytes);
  /// Writes bytes that were skipped; from several threads at once if they write different ones.
  void write_at(uint64_t offset, std::span<const std::byte> bytes) const;
  /// Bytes written or skipped so far.
  uint64_t position() const { return position_; }

  struct CloseOptions {
    bool sync = false;  ///< also wait until the data is on the device (fsync)
  };
  void close(CloseOptions options);
  void close() { close({}); }

 private:
  void flush();
  void write_out(std::span<const std::byte> bytes);
  void fill_blocks(std::span<const std::byte> bytes);
  void append_block();
  [[noreturn]] void fail(std::string_view doing) const;

  std::string path_;
  Options options_;
  int fd_ = -1;
  std::unique_ptr<std::byte[]> buffer_;
  std::unique_ptr<BlockWriter> blocks_;  // of a direct file, instead of the buffer
  size_t buffered_ = 0;                  // in either
  uint64_t position_ = 0;
};

}  // namespace tessera::files
