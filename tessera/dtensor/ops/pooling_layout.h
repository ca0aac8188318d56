#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "tessera/dtensor/ops/halo_exchange.h"
#include "tessera/dtensor/ops/pooling_shape.h"
#include "tessera/sharding/sharding.h"

namespace tessera::dtensor {

/// Pooling of an input that is cut in space: how the output lies, which window of the input each
/// rank pools, and what differs between the window and the whole.
class PoolingLayout {
 public:
  /// `format` is how the output lies in memory.
  PoolingLayout(const Sharding& input, PoolingArgs args, at::MemoryFormat format);

  const Sharding& input() const { return input_; }
  const Sharding& output() const { return output_; }
  bool makes_nothing() const { return output_.local_numel() == 0; }
  /// Brings this rank its window.
  HaloExchange exchange() const;

  /// The padding that is left to the kernel: windows have theirs in them.
  std::vector<int64_t> local_padding() const;
  /// What is outside of the tensor becomes less than anything in it.
  void fill_outside(at::Tensor& window) const;

  /// By how many elements each of this rank's averages is divided, over the spatial dims; of size 1
  /// in those where it does not change.
  at::Tensor divisor(bool count_padding) const;

  /// Places in the plane of this rank's window, of these sizes, as places in the whole plane.
  at::Tensor places_in_tensor(const at::Tensor& in_window, at::IntArrayRef window) const;
  /// The reverse.
  at::Tensor places_in_window(const at::Tensor& in_tensor, at::IntArrayRef window) const;

  /// A local result as the output's sharding says.
  at::Tensor lay(const at::Tensor& local) const { return local.contiguous(format_); }

 private:
  at::IntArrayRef plane() const;
  std::vector<int64_t> shifts(int64_t sign) const;
  /// By place in `cut_`. Empty windows for a rank that makes nothing.
  std::vector<Interval> windows_at(std::span<const int> coordinate) const;

  PoolingArgs args_;
  Sharding input_, output_;
  at::MemoryFormat format_;
  int first_;                      // the first spatial dim
  std::vector<int> cut_;           // spatial dims that are cut
  std::vector<Interval> windows_;  // of this rank
};

}  // namespace tessera::dtensor
