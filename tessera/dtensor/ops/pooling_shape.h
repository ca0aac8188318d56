#pragma once

#include <ATen/core/ivalue.h>

#include <cstdint>
#include <vector>

#include "tessera/sharding/local_shape.h"

/// The arithmetic of pooling: output sizes, which stretch of the input a stretch of the output is
/// made of, and how many elements an average counts.
namespace tessera::dtensor {

struct PoolingArgs {
  std::vector<int64_t> kernel;  // by spatial dim, as the rest
  std::vector<int64_t> stride;
  std::vector<int64_t> padding;
  std::vector<int64_t> dilation;
  bool ceil_mode = false;

  /// From kernel size, stride, padding and, where the op has it, dilation. One number stands for
  /// every dim; no stride for the kernel's size.
  PoolingArgs(int dims, c10::ArrayRef<c10::IValue> lists, bool ceil);

  int dims() const { return static_cast<int>(kernel.size()); }
  /// True if libtorch would not complain. `sizes` are the spatial ones.
  bool are_valid(c10::ArrayRef<int64_t> sizes) const;

  int64_t output_size(int dim, int64_t size) const;

  /// What outputs `part` of a dim see of the input, in global indexes, padding included.
  ///
  ///   kernel 3, stride 2, padding 1, outputs [2,4):   inputs [3,8)
  Interval window(int dim, Interval part) const;

  /// How many elements of a dim of `size` the average at `output` counts.
  int64_t count(int dim, int64_t size, int64_t output, bool count_padding) const;
};

}  // namespace tessera::dtensor
