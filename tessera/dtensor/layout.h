#pragma once

#include <ATen/core/Tensor.h>

#include <span>

#include "tessera/sharding/sharding.h"

/// How tensors lie over the mesh and in memory. A sharding names global strides; views are judged
/// by them, so they must be true of the local tensor. Kernels are free in the layout they choose,
/// and what Meta kernels or rules foretell is a guess.
namespace tessera::dtensor {

/// A sharding's sizes or strides, as libtorch takes them.
inline at::IntArrayRef as_ints(std::span<const int64_t> values) {
  return {values.data(), values.size()};
}

/// True if the local tensor lies as its sharding's local strides say.
inline bool is_laid_out_as(const at::Tensor& local, std::span<const int64_t> said) {
  const auto sizes = local.sizes();
  const auto strides = local.strides();
  for (size_t d = 0; d < sizes.size(); ++d) {
    if (sizes[d] > 1 && strides[d] != said[d]) return false;
  }
  return true;
}

/// The sharded tensor of a fresh local result whose strides are not the predicted ones. The
/// sharding takes over its strides where all ranks must have the same; where parts are uneven, and
/// so a rank may see no difference, the local tensor is copied into the predicted strides instead.
at::Tensor wrap_as_laid_out(const at::Tensor& local, const Sharding& predicted);

/// The same, replicated where it is Partial: how a gradient, or a tensor's values, lie.
Sharding without_partial(const Sharding& sharding);

}  // namespace tessera::dtensor
