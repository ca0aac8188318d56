#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <span>

/// Tensors for buffers and results, made without a trip through the dispatcher: a redistribution of
/// a small tensor is a handful of these, and each trip would cost as much as all else together.
namespace tessera::exec {

/// Uninitialised, contiguous, on `like`'s device. Large ones on the CPU come from block_pool.h.
at::Tensor empty_like_device(const at::Tensor& like, at::IntArrayRef sizes, at::ScalarType dtype);

/// The storage of a contiguous tensor seen with other sizes, from its element `offset`.
at::Tensor alias(const at::Tensor& contiguous, at::IntArrayRef sizes, int64_t offset = 0);

/// A contiguous tensor's bytes reinterpreted as another element type, flat.
at::Tensor alias_as(const at::Tensor& contiguous, at::ScalarType dtype);

}  // namespace tessera::exec
