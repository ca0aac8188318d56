#pragma once

#include <ATen/core/Tensor.h>

#include "tessera/sharding/sharding.h"

/// Sums over sharded classes that every rank knows without a message. The gradient of log_softmax
/// reduces its grad_output over the classes of all ranks. Where that comes from nll_loss, each row
/// has one element that is not zero, and all ranks know its value:
///
///   scores 2x4 S1 over tp=2, targets [3, 0]
///   gradient       rank 0 [[0, 0], [-.5, 0]], rank 1 [[0, -.5], [0, 0]]
///   its sums       [[-.5], [-.5]] on both
///
/// One entry for each mesh and set of its axes, of this thread. Whether it is found depends on the
/// ops that ran and on their metadata alone, so all ranks along these axes find it or none. A rank
/// that alone wrote to its part of the gradient does not: the next collective is an error
/// (exec/reuse_mark.h).
namespace tessera::dtensor {

/// `sums` are those of `grad`, the local part of a gradient sharded as `as`, over `dim`, which is
/// kept with size 1.
void keep_class_sums(const at::Tensor& grad, const Sharding& as, int64_t dim,
                     const at::Tensor& sums);

/// Those of this very tensor, if nothing was written to it since; else undefined. Removes them.
at::Tensor take_class_sums(const at::Tensor& grad, const Sharding& as, int64_t dim);

}  // namespace tessera::dtensor
