#pragma once

#include <concepts>
#include <cstddef>
#include <numeric>
#include <vector>

namespace tessera {

/// {0, 1, ..., count - 1}: the indexes of a list before they are sorted, all ranks, all axes.
template <typename T = size_t>
std::vector<T> iota_vector(std::integral auto count) {
  std::vector<T> out(static_cast<size_t>(count));
  std::iota(out.begin(), out.end(), T{0});
  return out;
}

}  // namespace tessera
