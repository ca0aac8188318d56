#pragma once

#include <ATen/core/Tensor.h>

#include <optional>

#include "tessera/sharding/sharding.h"

/// Redistributed copies that are kept with their tensor, so that a value which several ops need in
/// the same sharding is redistributed once (dtensor/redistribute_once.h):
///
///   q = linear(x, wq)     x is P(sum), wq S0: x is reduced, and the reduced copy is kept
///   k = linear(x, wk)     uses the copy
///   q + k, backward       both gradients arrive at the copy, are added there, and go back as one
///
/// Autograd records a copy as it records uses of the tensor then. An op without a derivative makes
/// a copy that is not recorded; the next op that has one uses its values behind a node:
///
///   mask = x > 0          x is reduced, and the copy is kept, not recorded
///   y = x * mask          uses a recorded copy with the same memory
///
/// A copy is dropped when its tensor is freed or written to, and when its thread keeps
/// kMostTensors newer ones of the mesh. A rank that alone wrote to its local part finds no copy
/// where the others do: their next collective is an error (exec/reuse_mark.h). Tensors of inference
/// mode have no version, so nothing is kept for them.
namespace tessera::dtensor {

/// Tensors per thread and mesh with kept copies. A copy is used by the next few ops or not at all.
constexpr size_t kMostTensors = 16;

/// Whether copies of the tensor can be kept: writes to it are counted.
bool can_keep_copies(const at::Tensor& tensor);

/// The kept copy with this sharding that is recorded as a use of the tensor is now; undefined if
/// there is none.
at::Tensor find_redistributed(const at::Tensor& tensor, const Sharding& to);
/// The kept copy with this sharding that autograd does not know.
at::Tensor find_unrecorded(const at::Tensor& tensor, const Sharding& to);
/// Keeps a copy that the caller made, if copies of the tensor can be kept.
void keep_redistributed(const at::Tensor& tensor, const Sharding& to, const at::Tensor& copy);

/// A kept copy that is not Partial, recorded as a use is now; undefined if there is none.
at::Tensor find_reduced(const at::Tensor& tensor);
/// The sharding of a kept copy that is not Partial and that autograd does not know.
std::optional<Sharding> unrecorded_reduction(const at::Tensor& tensor);

/// Called when the tensor is freed.
void drop_copies(const c10::TensorImpl* tensor) noexcept;

/// The number of tensors with kept copies, in all threads.
size_t tensors_with_copies();

}  // namespace tessera::dtensor
