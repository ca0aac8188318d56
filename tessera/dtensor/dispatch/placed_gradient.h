#pragma once

#include <ATen/core/dispatch/Dispatcher.h>

#include <memory>

#include "tessera/dtensor/dispatch/op_entry.h"

namespace torch::autograd {
struct FunctionPreHook;
}

/// A few of libtorch's derivative formulas make the gradient of an input from its sizes alone, as a
/// plain tensor. It has the whole gradient on every rank, but an optimizer could not put it
/// together with the sharded parameter. These ops get an autograd kernel that places such gradients
/// as the input is placed.
namespace tessera::dtensor {

/// The tensor itself, with a gradient that comes back sharded. Any other tensor than a sharded one
/// whose gradient is recorded is returned as it is.
at::Tensor with_placed_gradient(const at::Tensor& tensor);

/// True for the hook that this file puts on a tensor that is written to.
bool is_placing_hook(const torch::autograd::FunctionPreHook& hook);

/// True for an op whose derivative makes plain gradients.
bool makes_plain_gradients(const c10::OperatorName& name);

/// The autograd kernel for it, in front of libtorch's.
c10::KernelFunction placed_gradient_kernel(std::shared_ptr<const OpEntry> entry,
                                           const c10::OperatorHandle& op);

}  // namespace tessera::dtensor
