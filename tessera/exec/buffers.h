#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <span>

/// Tensors for buffers and results, created without the dispatcher: redistributing a small tensor
/// needs a handful of these, and each dispatch would cost as much as everything else together.
namespace tessera::exec {

/// Uninitialized, contiguous, on the device of `like`. Large ones on the CPU come from
/// collective/block_pool.h.
at::Tensor empty_like_device(const at::Tensor& like, at::IntArrayRef sizes, at::ScalarType dtype);

/// The storage of a contiguous tensor viewed with other sizes, from element `offset` on.
at::Tensor alias(const at::Tensor& contiguous, at::IntArrayRef sizes, int64_t offset = 0);

/// The bytes of a contiguous tensor reinterpreted as another element type, flat.
at::Tensor alias_as(const at::Tensor& contiguous, at::ScalarType dtype);

}  // namespace tessera::exec
