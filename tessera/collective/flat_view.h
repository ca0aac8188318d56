#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/TensorImpl.h>

namespace tessera::comm {

/// `count` elements of a contiguous tensor from index `begin` on, as a 1-d tensor over the same
/// memory. Equivalent to view({-1}).narrow(...) without two passes through the dispatcher, which
/// would dominate the cost of a small message; invisible to autograd.
inline at::Tensor flat_view(const at::Tensor& contiguous, int64_t begin, int64_t count) {
  c10::TensorImpl& whole = *contiguous.unsafeGetTensorImpl();
  auto impl = c10::make_intrusive<c10::TensorImpl>(c10::Storage(whole.unsafe_storage()),
                                                   whole.key_set(), whole.dtype());
  impl->set_sizes_contiguous(count);
  impl->set_storage_offset(whole.storage_offset() + begin);
  return at::Tensor(std::move(impl));
}

inline at::Tensor flat_view(const at::Tensor& contiguous) {
  return flat_view(contiguous, 0, contiguous.numel());
}

}  // namespace tessera::comm
