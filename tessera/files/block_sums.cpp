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

}  // namespace tessera::files
