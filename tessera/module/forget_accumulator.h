#pragma once

#include <ATen/core/Tensor.h>
#include <torch/csrc/autograd/variable.h>

namespace tessera::module {

/// The node that accumulates a leaf's gradient stores the tensor's metadata (plain, its device).
/// After the tensor changed in place, drops the node, so that a new one is created at the next use.
inline void forget_accumulator(const at::Tensor& tensor) {
  auto* meta = torch::autograd::impl::get_autograd_meta(tensor);
  if (meta != nullptr) meta->grad_accumulator_.reset();
}

}  // namespace tessera::module
