#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <span>

/// Tensors for buffers and results, made without a trip through the dispatcher: a redistribution of
/// a small tensor is a handful of these, and each trip would cost as much as all else together.
namespace tessera::exec {

/// Uninitialised, contiguous, on `like`'s device. Large ones ask the kernel for huge pages, which
/// saves most of the time of touching fresh memory.
at::Tensor empty_like_device(const at::Tensor& like, at::IntArrayRef sizes, at::ScalarType dtype);

/// The storage of a contiguous tensor seen with other sizes, from its element `offset`.
at::Tensor alias(const at::Tensor& contiguous, at::IntArrayRef sizes, int64_t offset = 0);

/// A contiguous tensor's bytes reinterpreted as another element type, flat.
at::Tensor alias_as(const at::Tensor& contiguous, at::ScalarType dtype);

/// A flat buffer for the duration of one collective. On the CPU the calling thread keeps its last
/// one (up to 64 MiB) for the next call, which spares touching fresh memory; it is taken again only
/// when nobody else refers to it.
at::Tensor scratch(const at::Tensor& like, int64_t numel, at::ScalarType dtype);

}  // namespace tessera::exec
