#pragma once

#include <ATen/core/dispatch/Dispatcher.h>

#include <memory>

#include "tessera/base/api.h"
#include "tessera/dtensor/dispatch/op/op_entry.h"

namespace torch::autograd {
struct FunctionPreHook;
}

/// A few of libtorch's derivative formulas create the gradient of an input from its sizes alone, as
/// a plain tensor. It is correct on every rank, but cannot be combined with a sharded parameter by
/// an optimizer. These ops get an autograd kernel that converts such gradients to the input's
/// sharding.
namespace tessera::dtensor {

/// The same tensor, whose gradient will be sharded. Returns tensors that are not sharded, or whose
/// gradient is not recorded, unchanged.
TESSERA_API at::Tensor with_placed_gradient(const at::Tensor& tensor);

/// Whether `hook` was installed by this file, on a tensor that is written to.
bool is_placing_hook(const torch::autograd::FunctionPreHook& hook);

/// Whether the derivative of an op creates plain gradients.
bool makes_plain_gradients(const c10::OperatorName& name);

/// The autograd kernel for such an op; it calls libtorch's.
c10::KernelFunction placed_gradient_kernel(std::shared_ptr<const OpEntry> entry,
                                           const c10::OperatorHandle& op);

}  // namespace tessera::dtensor
