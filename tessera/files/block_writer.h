#pragma once

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <thread>
#include <vector>

namespace tessera::files {

/// Appends blocks to an open file on a thread of its own, in order, while the caller fills the next
/// one: checksums and copies overlap with the device's work.
///
/// Blocks are written past the page cache (O_DIRECT), which saves a copy and the allocation of a
/// page for every 4 KiB. Where the file system or the position does not allow that, they are
/// written through it, and write-back starts early so that a sync at the end takes less time.
///
///   BlockWriter writer(fd);
///   std::memcpy(writer.block().data(), ...);
///   writer.append(BlockWriter::kBlock);    // hands the block over; writer.block() is the next one
///   const int error = writer.finish();     // errno of the first failure, or 0
///
/// Memory: three blocks. `fd` stays the caller's and must be open until finish or the destructor.
class BlockWriter {
 public:
  /// The device splits larger requests, smaller ones leave it idle between two.
  static constexpr size_t kBlock = size_t{4} << 20;

  explicit BlockWriter(int fd);
  /// Blocks that are not being written yet are dropped.
  ~BlockWriter();
  BlockWriter(const BlockWriter&) = delete;
  BlockWriter& operator=(const BlockWriter&) = delete;

  /// The block that `append` hands over.
  std::span<std::byte> block();
  /// Hands over the first `bytes` of the block, at most kBlock, and blocks until another one is
  /// free. Only the last append may be of fewer than kBlock. Returns errno of the first failure of
  /// this or an earlier append, or 0.
  int append(size_t bytes);
  /// Blocks until everything is written. No append may follow.
  int finish();

 private:
  static constexpr size_t kBlocks = 3;
  struct Free {
    void operator()(std::byte* block) const;
  };

  void run();
  int write_out(std::span<const std::byte> bytes);
  void set_direct(bool direct);
  void start_write_back(uint64_t bytes);
  void stop();

  const int fd_;
  bool direct_ = false;
  uint64_t position_ = 0;
  uint64_t started_ = 0;  // write-back, up to here
  std::vector<std::unique_ptr<std::byte, Free>> blocks_;
  std::vector<size_t> sizes_;  // of blocks_, in bytes

  std::mutex mutex_;
  std::condition_variable changed_;
  uint64_t appended_ = 0;  // blocks; block i has the memory i % kBlocks
  uint64_t written_ = 0;
  int error_ = 0;
  bool stopping_ = false;
  std::thread thread_;
};

}  // namespace tessera::files
