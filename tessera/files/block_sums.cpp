#include "tessera/files/block_sums.h"

#include <algorithm>

#include "tessera/files/crc32.h"

namespace tessera::files {

void BlockSums::add(std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const uint64_t filled = position_ % kBlock;
    if (filled == 0) sums_.push_back(0);
    const auto part = bytes.first(std::min<uint64_t>(bytes.size(), kBlock - filled));
    sums_.back() = crc32(part, sums_.back());
    position_ += part.size();
    bytes = bytes.subspan(part.size());
  }
}

bool block_sum_matches(std::span<const std::byte> file, std::span<const uint32_t> sums,
                       uint64_t i) {
  if (i >= sums.size() || i * BlockSums::kBlock >= file.size()) return false;
  const auto rest = file.subspan(i * BlockSums::kBlock);
  return crc32(rest.first(std::min<uint64_t>(rest.size(), BlockSums::kBlock))) == sums[i];
}

}  // namespace tessera::files
