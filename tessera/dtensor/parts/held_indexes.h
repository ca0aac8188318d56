#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "tessera/sharding/sharding.h"

namespace tessera::dtensor {

/// The elements of the global tensor that this rank holds, by row-major index, in the memory order
/// of a dense local tensor.
///
///   dp=2 : S1 : 3x4 on rank 1    ->  2 3  6 7  10 11:  three rows with one run of 2 each
class HeldIndexes {
 public:
  explicit HeldIndexes(const Sharding& sharding);

  int64_t size() const { return rows_ * row_size_; }

  /// Calls run(place, index, length) for the local elements [begin, end): `length` elements at
  /// offset `place` of the local tensor are the global elements from `index` on.
  template <typename Run>
  void for_runs(int64_t begin, int64_t end, Run run) const {
    while (begin < end) {
      const int64_t row = begin / row_size_;
      const int64_t base = row_index(row);
      int64_t place = row * row_size_;
      for (const auto& [index, length] : runs_) {
        const int64_t skip = begin > place ? begin - place : 0;
        const int64_t last = place + length < end ? place + length : end;
        if (place + skip < last) run(place + skip, base + index + skip, last - place - skip);
        place += length;
        if (place >= end) return;
      }
      begin = (row + 1) * row_size_;
    }
  }

 private:
  struct Piece {
    int64_t index;
    int64_t length;
  };

  int64_t row_index(int64_t row) const;

  // Dims before the last sharded one form rows; that dim and those after it form contiguous runs.
  std::vector<std::vector<int64_t>> outer_;  // by outer dim: global index times stride
  std::vector<Piece> runs_;
  int64_t rows_ = 1;
  int64_t row_size_ = 0;
};

/// The global index of each local index of a dim, as int64; empty on a rank outside the mesh.
at::Tensor held_indexes(const Sharding& sharding, int dim, c10::Device device);

}  // namespace tessera::dtensor
