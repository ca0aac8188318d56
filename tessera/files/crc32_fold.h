#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace tessera::files {

/// Whether this machine has an instruction for carry-less products (PCLMULQDQ).
bool has_crc32_fold();

/// The register of the CRC after `bytes`, of which there are a multiple of 16, at least 64. Folds
/// 64 bytes a step by carry-less products: about 10 GB/s.
uint32_t crc32_fold(std::span<const std::byte> bytes, uint32_t state);

}  // namespace tessera::files
