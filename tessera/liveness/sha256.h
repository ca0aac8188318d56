#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>

/// SHA-256 (FIPS 180-4) and HMAC (RFC 2104) over it: how ranks prove that they know the secret of
/// their job without sending it.
namespace tessera::comm {

using Digest = std::array<uint8_t, 32>;

Digest sha256(std::string_view message);

/// A digest that only those who know `key` can compute or check.
Digest hmac_sha256(std::string_view key, std::string_view message);

/// Compares in a time that does not depend on where they differ.
bool same_digest(std::string_view a, std::string_view b);

/// As hexadecimal digits.
std::string hex_text(std::string_view bytes);

inline std::string_view bytes_view(const Digest& digest) {
  return {reinterpret_cast<const char*>(digest.data()), digest.size()};
}

}  // namespace tessera::comm
