#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>

/// SHA-256 (FIPS 180-4) and HMAC (RFC 2104). Ranks use them to prove knowledge of the job's secret
/// without sending it.
namespace tessera::comm {

using Digest = std::array<uint8_t, 32>;

Digest sha256(std::string_view message);

/// A message authentication code that can only be computed or checked with `key`.
Digest hmac_sha256(std::string_view key, std::string_view message);

/// Constant-time comparison.
bool same_digest(std::string_view a, std::string_view b);

/// Hexadecimal digits.
std::string hex_text(std::string_view bytes);

inline std::string_view bytes_view(const Digest& digest) {
  return {reinterpret_cast<const char*>(digest.data()), digest.size()};
}

}  // namespace tessera::comm
