#pragma once

#include <ATen/core/dispatch/Dispatcher.h>

#include <memory>

#include "tessera/dtensor/op_entry.h"

/// A few of libtorch's derivative formulas make the gradient of an input from its sizes alone, as a
/// plain tensor. It has the whole gradient on every rank, but an optimizer could not put it together
/// with the sharded parameter. These ops get an autograd kernel that places such gradients as the
/// input is placed.
namespace tessera::dtensor {

/// True for an op whose derivative makes plain gradients.
bool makes_plain_gradients(const c10::OperatorName& name);

/// The autograd kernel for it, in front of libtorch's.
c10::KernelFunction placed_gradient_kernel(std::shared_ptr<const OpEntry> entry,
                                           const c10::OperatorHandle& op);

}  // namespace tessera::dtensor
