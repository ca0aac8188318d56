#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

/// Tensor views of raw memory, created without the dispatcher, because a gather creates one per
/// parameter. Not visible to autograd.
namespace tessera::fsdp {

/// Equivalent to narrow and two views of `memory`, a byte tensor, from `byte_offset` on.
at::Tensor placed(const at::Tensor& memory, int64_t byte_offset, at::IntArrayRef shape,
                  at::ScalarType dtype);

/// All of `memory` as a flat tensor of `dtype`. Reuses the tensor itself if it is the only
/// reference.
at::Tensor as_numbers(at::Tensor memory, at::ScalarType dtype);

/// Equivalent to narrow and view of a flat tensor. Shares its version counter.
at::Tensor part_of(const at::Tensor& flat, int64_t begin, at::IntArrayRef shape);

/// A byte tensor with the options and size of `like` but no storage. Views of it are created once
/// and see whichever memory is attached.
at::Tensor storageless(const at::Tensor& like);
void attach_storage(const at::Tensor& storageless, at::DataPtr memory);
void detach_storage(const at::Tensor& storageless);

}  // namespace tessera::fsdp
