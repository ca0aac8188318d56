#pragma once

#include <ATen/core/Tensor.h>

#include <span>
#include <string_view>

#include "tessera/sharding/sharding.h"

/// Strides of sharded tensors. A sharding names global strides; whether an op can return a view is
/// decided by them, so they must hold for the local tensor. Kernels choose their output strides
/// freely, so what Meta kernels or rules predict may be wrong.
namespace tessera::dtensor {

/// A sharding's sizes or strides as an IntArrayRef.
inline at::IntArrayRef as_ints(std::span<const int64_t> values) {
  return {values.data(), values.size()};
}

/// Whether the local tensor has these strides, ignoring dims of size 1.
inline bool is_laid_out_as(const at::Tensor& local, std::span<const int64_t> said) {
  const auto sizes = local.sizes();
  const auto strides = local.strides();
  for (size_t d = 0; d < sizes.size(); ++d) {
    if (sizes[d] > 1 && strides[d] != said[d]) return false;
  }
  return true;
}

/// The sharding of a new tensor that is laid out as `as`. If its elements share memory, as those
/// of an expanded operand do, it is dense, with the dims in the order that libtorch's pointwise ops
/// give their results: 2x3x4 {0,1,3} becomes {12,1,3}.
Sharding with_own_elements(const Sharding& as);

/// Uninitialized memory for this rank's part of with_own_elements(as).
at::Tensor empty_local(const Sharding& as, const at::TensorOptions& options);

/// Throws NotSupported, in the name of `what`, for a sparse or nested tensor: a part is addressed
/// by sizes and strides, which it does not have.
void require_strided(std::string_view what, const at::Tensor& tensor);

/// Wraps a new local result whose strides differ from the predicted ones. If all ranks necessarily
/// have the same strides, the sharding adopts them. If parts are uneven, some rank may see no
/// difference, so the local tensor is copied to the predicted strides instead. `adopted` keeps the
/// last sharding that was made so: most kernels choose the same strides in the next call.
at::Tensor wrap_as_laid_out(const at::Tensor& local, const Sharding& predicted, Sharding& adopted);
inline at::Tensor wrap_as_laid_out(const at::Tensor& local, const Sharding& predicted) {
  Sharding adopted;
  return wrap_as_laid_out(local, predicted, adopted);
}

}  // namespace tessera::dtensor
