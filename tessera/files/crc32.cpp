#include "tessera/files/crc32.h"

#include <array>
#include <bit>
#include <cstring>

#include "tessera/files/crc32_fold.h"

namespace tessera::files {
namespace {

constexpr size_t kStep = 16;
constexpr size_t kFoldFrom = 64;
using Tables = std::array<std::array<uint32_t, 256>, kStep>;

/// tables[k][b]: the remainder of byte b followed by k zero bytes.
constexpr Tables make_tables() {
  Tables tables{};
  for (uint32_t byte = 0; byte < 256; ++byte) {
    uint32_t crc = byte;
    for (int bit = 0; bit < 8; ++bit) crc = (crc >> 1) ^ ((crc & 1) != 0 ? 0xEDB88320U : 0U);
    tables[0][byte] = crc;
  }
  for (size_t k = 1; k < kStep; ++k) {
    for (size_t byte = 0; byte < 256; ++byte) {
      const uint32_t before = tables[k - 1][byte];
      tables[k][byte] = (before >> 8) ^ tables[0][before & 0xFF];
    }
  }
  return tables;
}

constexpr Tables kTables = make_tables();

}  // namespace

uint32_t crc32(std::span<const std::byte> bytes, uint32_t crc) {
  static_assert(std::endian::native == std::endian::little);
  crc = ~crc;
  const auto* at = reinterpret_cast<const unsigned char*>(bytes.data());
  size_t left = bytes.size();
  if (left >= kFoldFrom && has_crc32_fold()) {
    const size_t folded = left - left % 16;
    crc = crc32_fold(bytes.first(folded), crc);
    at += folded;
    left -= folded;
  }
  for (; left >= kStep; left -= kStep, at += kStep) {
    std::array<unsigned char, kStep> block;
    std::memcpy(block.data(), at, kStep);
    uint32_t head = 0;
    std::memcpy(&head, block.data(), sizeof head);
    head ^= crc;
    std::memcpy(block.data(), &head, sizeof head);
    crc = 0;
    for (size_t i = 0; i < kStep; ++i) crc ^= kTables[kStep - 1 - i][block[i]];
  }
  for (; left > 0; --left, ++at) crc = (crc >> 8) ^ kTables[0][(crc ^ *at) & 0xFF];
  return ~crc;
}

}  // namespace tessera::files
