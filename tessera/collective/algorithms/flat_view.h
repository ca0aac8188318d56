#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/TensorImpl.h>

/// Views created without the dispatcher, whose passes would dominate the cost of a small message.
/// Invisible to autograd.
namespace tessera::comm {

/// A contiguous tensor of `sizes` over the storage of another, from its element `offset` on.
inline at::Tensor storage_view(const at::Tensor& tensor, at::IntArrayRef sizes, int64_t offset,
                               at::ScalarType dtype) {
  const c10::TensorImpl& of = *tensor.unsafeGetTensorImpl();
  auto impl = c10::make_intrusive<c10::TensorImpl>(c10::Storage(of.unsafe_storage()), of.key_set(),
                                                   c10::scalarTypeToTypeMeta(dtype));
  impl->set_sizes_contiguous(sizes);
  impl->set_storage_offset(offset);
  return at::Tensor(std::move(impl));
}

/// `count` elements of a contiguous tensor from index `begin` on, as a 1-d tensor over the same
/// memory: view({-1}).narrow(...).
inline at::Tensor flat_view(const at::Tensor& contiguous, int64_t begin, int64_t count) {
  return storage_view(contiguous, count, contiguous.storage_offset() + begin,
                      contiguous.scalar_type());
}

inline at::Tensor flat_view(const at::Tensor& contiguous) {
  return flat_view(contiguous, 0, contiguous.numel());
}

}  // namespace tessera::comm
