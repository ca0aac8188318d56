#include "tessera/exec/buffers.h"

#include <ATen/ops/empty.h>
#include <c10/core/TensorImpl.h>

#include "tessera/collective/block_pool.h"

namespace tessera::exec {
namespace {

at::Tensor view_of(const at::Tensor& tensor, at::IntArrayRef sizes, c10::ScalarType dtype,
                   int64_t offset) {
  auto impl = c10::make_intrusive<c10::TensorImpl>(
      c10::Storage(tensor.unsafeGetTensorImpl()->unsafe_storage()),
      tensor.unsafeGetTensorImpl()->key_set(), c10::scalarTypeToTypeMeta(dtype));
  impl->set_sizes_contiguous(sizes);
  impl->set_storage_offset(offset);
  return at::Tensor(std::move(impl));
}

}  // namespace

at::Tensor empty_like_device(const at::Tensor& like, at::IntArrayRef sizes, at::ScalarType dtype) {
  if (!like.is_cpu()) return at::empty(sizes, like.options().dtype(dtype));
  return comm::pooled_empty(sizes, dtype);
}

at::Tensor alias(const at::Tensor& contiguous, at::IntArrayRef sizes, int64_t offset) {
  return view_of(contiguous, sizes, contiguous.scalar_type(), contiguous.storage_offset() + offset);
}

at::Tensor alias_as(const at::Tensor& contiguous, at::ScalarType dtype) {
  const auto old_size = static_cast<int64_t>(contiguous.element_size());
  const auto new_size = static_cast<int64_t>(c10::elementSize(dtype));
  return view_of(contiguous, {contiguous.numel() * old_size / new_size}, dtype,
                 contiguous.storage_offset() * old_size / new_size);
}

}  // namespace tessera::exec
