#pragma once

#include <ATen/core/Tensor.h>

#include "tessera/sharding/sharding.h"

/// Operands that an op redistributed without being asked to, kept for the next ops that need the
/// same:
///
///   q = linear(x, wq)     x is S1 (the sequence), wq S0: x is gathered
///   k = linear(x, wk)     uses the gathered copy
///   backward              the derivatives of wq and wk gather x once
///
/// Partial sums are kept otherwise (kept_copies.h): they must be reduced above autograd, so that
/// gradients are. A gather needs no such care, because the gradients of its uses are Partial, and
/// are added up before they are reduced.
///
/// Bounded: each thread keeps its last kMostGathers of each mesh and its axes. A copy is used while
/// neither the tensor nor the copy was written to. Whether one is found depends on the ops of the
/// thread over these axes alone, so all ranks along them find the same; where they do not, because
/// one of them wrote to its local part alone, the next collective is an error (exec/reuse_mark.h).
/// Tensors of inference mode have no version, so nothing is kept for them.
namespace tessera::dtensor {

/// The inputs of one layer's projections are gathered at about the same time, and so are the
/// operands of their derivatives.
constexpr size_t kMostGathers = 4;

/// The local tensor of `tensor` redistributed to `to`, or undefined if there is none.
at::Tensor find_gather(const at::Tensor& tensor, const Sharding& to);

/// Keeps `local` for find_gather. No effect on tensors that are Partial or lazy, on parameters, and
/// where no axis that shards becomes replicated.
void keep_gather(const at::Tensor& tensor, const Sharding& to, const at::Tensor& local);

/// Called when the tensor is freed; releases the memory of this thread's copies.
void drop_gathers(const c10::TensorImpl* tensor) noexcept;

}  // namespace tessera::dtensor
