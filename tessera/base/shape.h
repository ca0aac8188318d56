#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <vector>

namespace tessera {

/// The number of elements of a shape: {2,3} -> 6, {} -> 1, {4,0} -> 0.
inline int64_t numel_of(std::span<const int64_t> shape) {
  int64_t n = 1;
  for (const int64_t size : shape) n *= size;
  return n;
}

/// The row-major strides of a shape: {2,3} -> {3,1}. A dim of size 0 counts as 1.
inline std::vector<int64_t> contiguous_stride(std::span<const int64_t> shape) {
  std::vector<int64_t> out(shape.size());
  int64_t stride = 1;
  for (size_t d = shape.size(); d-- > 0;) {
    out[d] = stride;
    stride *= std::max<int64_t>(shape[d], 1);
  }
  return out;
}

}  // namespace tessera
