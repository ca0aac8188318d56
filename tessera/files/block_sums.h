#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace tessera::files {

/// The CRC-32 of every block of a file, so that a reader of a part can verify just that part. A
/// file of 2.5 MiB has three sums; the last covers half a block.
///
///   BlockSums sums;
///   OutputFile file(path, {.sums = &sums});          // collects while the file is written
///   ...
///   crc32(block i of the file) == sums.values()[i]
class BlockSums {
 public:
  static constexpr uint64_t kBlock = uint64_t{1} << 20;

  void add(std::span<const std::byte> bytes);
  std::span<const uint32_t> values() const { return sums_; }

 private:
  std::vector<uint32_t> sums_;
  uint64_t position_ = 0;
};

/// The number of sums of a file of this size.
inline uint64_t block_count(uint64_t size) {
  return size / BlockSums::kBlock + (size % BlockSums::kBlock != 0 ? 1 : 0);
}

}  // namespace tessera::files
