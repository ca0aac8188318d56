#include "tessera/exec/buffers.h"

#include <ATen/ops/empty.h>

#include "tessera/collective/algorithms/flat_view.h"
#include "tessera/collective/block_pool.h"

namespace tessera::exec {

at::Tensor empty_like_device(const at::Tensor& like, at::IntArrayRef sizes, at::ScalarType dtype) {
  if (!like.is_cpu()) return at::empty(sizes, like.options().dtype(dtype));
  return comm::pooled_empty(sizes, dtype);
}

at::Tensor alias(const at::Tensor& contiguous, at::IntArrayRef sizes, int64_t offset) {
  return comm::storage_view(contiguous, sizes, contiguous.storage_offset() + offset,
                            contiguous.scalar_type());
}

at::Tensor alias_as(const at::Tensor& contiguous, at::ScalarType dtype) {
  const auto old_size = static_cast<int64_t>(contiguous.element_size());
  const auto new_size = static_cast<int64_t>(c10::elementSize(dtype));
  return comm::storage_view(contiguous, contiguous.numel() * old_size / new_size,
                            contiguous.storage_offset() * old_size / new_size, dtype);
}

}  // namespace tessera::exec
