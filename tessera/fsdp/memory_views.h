#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

/// Tensors over memory, made without a trip through the dispatcher: a gather makes one for each of
/// its parameters. Autograd does not see them.
namespace tessera::fsdp {

/// What narrow and two views give of `memory`, a tensor of bytes, from `byte_offset` on.
at::Tensor placed(const at::Tensor& memory, int64_t byte_offset, at::IntArrayRef shape,
                  at::ScalarType dtype);

/// All of `memory` as numbers; of one that nobody else holds, the tensor itself.
at::Tensor as_numbers(at::Tensor memory, at::ScalarType dtype);

/// What narrow and view give of a flat tensor. A write to it counts as one to the whole.
at::Tensor part_of(const at::Tensor& flat, int64_t begin, at::IntArrayRef shape);

/// A tensor of bytes, of the kind and size of `like`, without memory. Tensors over it are made
/// once, and see whatever memory is put in.
at::Tensor storageless(const at::Tensor& like);
void attach_storage(const at::Tensor& storageless, at::DataPtr memory);
void detach_storage(const at::Tensor& storageless);

}  // namespace tessera::fsdp
