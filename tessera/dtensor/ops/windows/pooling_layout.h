#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "tessera/dtensor/ops/windows/halo_exchange.h"
#include "tessera/dtensor/ops/windows/pooling_shape.h"
#include "tessera/sharding/sharding.h"

namespace tessera::dtensor {

/// Pooling of a spatially sharded input: the window of the input that each rank pools for its part
/// of the output, and the differences between pooling a window and pooling the whole.
class PoolingLayout {
 public:
  /// The output's sharding may be that of its gradient.
  PoolingLayout(const Sharding& input, const Sharding& output, PoolingArgs args);

  bool makes_nothing() const { return output_.local_numel() == 0; }
  /// Collects this rank's window.
  HaloExchange exchange() const;

  /// The padding that the local kernel applies: windows already contain theirs.
  std::vector<int64_t> local_padding() const;
  /// Sets everything outside of the tensor to the lowest value, so that it is never the maximum.
  void fill_outside(at::Tensor& window) const;

  /// The divisor of each of this rank's averages, over the spatial dims; of size 1 in dims where it
  /// is constant.
  at::Tensor divisor(bool count_padding) const;

  /// Converts flat positions in the plane of this rank's window, of these sizes, to positions in
  /// the whole plane.
  at::Tensor places_in_tensor(const at::Tensor& in_window, at::IntArrayRef window) const;
  /// The inverse.
  at::Tensor places_in_window(const at::Tensor& in_tensor, at::IntArrayRef window) const;

 private:
  at::IntArrayRef plane() const;
  std::vector<int64_t> shifts(int64_t sign) const;
  /// By index into `sharded_`. Empty windows for a rank without outputs.
  std::vector<Interval> windows_at(std::span<const int> coordinate) const;

  PoolingArgs args_;
  Sharding input_, output_;
  int first_;                      // the first spatial dim
  std::vector<int> sharded_;       // sharded spatial dims
  std::vector<Interval> windows_;  // of this rank
};

}  // namespace tessera::dtensor
