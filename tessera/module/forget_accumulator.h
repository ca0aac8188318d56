#pragma once

#include <ATen/core/Tensor.h>
#include <torch/csrc/autograd/variable.h>

namespace tessera::module {

/// The node that accumulates a leaf's gradient remembers the tensor as it was (plain, its device).
/// After the tensor changed in place, a new node is made when it is next used.
inline void forget_accumulator(const at::Tensor& tensor) {
  auto* meta = torch::autograd::impl::get_autograd_meta(tensor);
  if (meta != nullptr) meta->grad_accumulator_.reset();
}

}  // namespace tessera::module
