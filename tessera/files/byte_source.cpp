#include "tessera/files/byte_source.h"

#include <algorithm>

namespace tessera::files {

std::span<const std::byte> ReadSource::view(uint64_t offset, uint64_t size) {
  constexpr uint64_t kAround = 4096;
  for (size_t i = 0; i < windows_.size(); ++i) {
    const Window& window = windows_[i];
    if (offset < window.offset || offset - window.offset > window.bytes.size()) continue;
    const uint64_t skipped = offset - window.offset;
    if (size > window.bytes.size() - skipped) continue;
    oldest_ = 1 - i;
    return std::span<const std::byte>(window.bytes).subspan(skipped, size);
  }
  Window& window = windows_[oldest_];
  oldest_ = 1 - oldest_;
  const uint64_t begin = offset - std::min(offset, kAround);
  const uint64_t end = offset + size + std::min(size_ - offset - size, kAround);
  window.bytes.clear();  // should the read fail, the window is of nothing
  std::vector<std::byte> bytes(end - begin);
  file_->read(offset_ + begin, bytes);
  window = {begin, std::move(bytes)};
  return std::span<const std::byte>(window.bytes).subspan(offset - begin, size);
}

}  // namespace tessera::files
