#pragma once

#include <ATen/core/dispatch/Dispatcher.h>

/// The derivative of linear where only its input or only its weight requires grad: the first layer
/// of a model, a frozen weight. libtorch's formula saves both for backward, so that
///
///   y = linear(x, weight)      x is data
///   weight.mul_(0.5)           without grad
///   y.sum().backward()         "modified by an inplace operation", though only x is needed
///
/// fails, and the input of a frozen layer is kept for nothing. Plain tensors never meet it: there
/// linear is made of products, which save what they need.
namespace tessera::dtensor {

/// The kernel above libtorch's formula, for aten::linear.
c10::KernelFunction linear_gradient_kernel(const c10::OperatorHandle& op);

}  // namespace tessera::dtensor
