#pragma once

#include <cstdint>
#include <span>

namespace tessera {

/// The number of elements of a shape: {2,3} -> 6, {} -> 1, {4,0} -> 0.
inline int64_t product(std::span<const int64_t> shape) {
  int64_t n = 1;
  for (const int64_t size : shape) n *= size;
  return n;
}

}  // namespace tessera
