#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

/// A c10d::Store holds bytes; we write text.
namespace tessera::comm {

inline std::vector<uint8_t> bytes_of(std::string_view text) { return {text.begin(), text.end()}; }

inline std::string text_of(const std::vector<uint8_t>& bytes) {
  return {bytes.begin(), bytes.end()};
}

}  // namespace tessera::comm
