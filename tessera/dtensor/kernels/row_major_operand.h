#pragma once

#include <ATen/core/dispatch/Dispatcher.h>

/// Determinants. libtorch factors the transposed matrix if the operand is contiguous, and its
/// derivative asks the operand again. On a sharded tensor the first question is about the local
/// tensor, which may have been moved, the second one about the sharded tensor: if the answers
/// differ, the gradient is transposed. These ops get an autograd kernel that makes the operand
/// contiguous, and so its local tensors.
namespace tessera::dtensor {

/// Whether the op is one of those.
bool needs_row_major_operand(const c10::OperatorName& name);

/// The autograd kernel for such an op; it calls libtorch's.
c10::KernelFunction row_major_kernel(const c10::OperatorHandle& op);

}  // namespace tessera::dtensor
