#pragma once

#include <c10/util/ArrayRef.h>

#include <cstdint>
#include <vector>

#include "tessera/sharding/local_shape.h"

/// Index arithmetic of pooling: output sizes, the input range that an output range depends on, and
/// the number of elements that an average counts.
namespace tessera::dtensor {

struct PoolingArgs {
  std::vector<int64_t> kernel;  // by spatial dim, like the rest
  std::vector<int64_t> stride;
  std::vector<int64_t> padding;
  std::vector<int64_t> dilation;
  bool ceil_mode = false;

  /// One number applies to every dim; an empty stride means the kernel size, an empty dilation 1.
  PoolingArgs(int dims, std::vector<int64_t> kernel_size, std::vector<int64_t> strides,
              std::vector<int64_t> paddings, std::vector<int64_t> dilations, bool ceil);

  int dims() const { return static_cast<int>(kernel.size()); }
  /// Whether libtorch accepts them. `sizes` are the spatial ones.
  bool are_valid(c10::ArrayRef<int64_t> sizes) const;

  int64_t output_size(int dim, int64_t size) const;

  /// The input range of outputs `part` of a dim, in global indexes, including padding.
  ///
  ///   kernel 3, stride 2, padding 1, outputs [2,4):   inputs [3,8)
  Interval window(int dim, Interval part) const;

  /// Elements that the windows of a part read beyond it, if parts divide evenly.
  int64_t halo(int dim) const;

  /// The number of elements of a dim of `size` that the average at `output` counts.
  int64_t count(int dim, int64_t size, int64_t output, bool count_padding) const;
};

}  // namespace tessera::dtensor
