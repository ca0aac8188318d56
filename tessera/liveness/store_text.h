#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

/// Conversion between text and the bytes of a c10d::Store.
namespace tessera::comm {

inline std::vector<uint8_t> bytes_of(std::string_view text) { return {text.begin(), text.end()}; }

inline std::string text_of(const std::vector<uint8_t>& bytes) {
  return {bytes.begin(), bytes.end()};
}

}  // namespace tessera::comm
