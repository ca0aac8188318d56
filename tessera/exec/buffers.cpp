#include "tessera/exec/buffers.h"

#include <ATen/EmptyTensor.h>
#include <ATen/ops/empty.h>
#include <c10/core/TensorImpl.h>
#include <sys/mman.h>
#include <unistd.h>

namespace tessera::exec {
namespace {

constexpr size_t kHugePage = 2U << 20;

void ask_for_huge_pages(void* data, size_t bytes) {
  // A hint about whole huge pages inside the buffer; where the kernel has none it is ignored.
  const auto begin = (reinterpret_cast<uintptr_t>(data) + kHugePage - 1) & ~(kHugePage - 1);
  const auto end = (reinterpret_cast<uintptr_t>(data) + bytes) & ~(kHugePage - 1);
  if (begin < end) madvise(reinterpret_cast<void*>(begin), end - begin, MADV_HUGEPAGE);
}

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
  at::Tensor out = at::Tensor(at::detail::empty_cpu(sizes, dtype, /*pin_memory=*/false,
                                                    /*memory_format=*/std::nullopt));
  if (const size_t bytes = out.nbytes(); bytes >= 2 * kHugePage) {
    ask_for_huge_pages(out.mutable_data_ptr(), bytes);
  }
  return out;
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

at::Tensor scratch(const at::Tensor& like, int64_t numel, at::ScalarType dtype) {
  constexpr int64_t kMaxKept = 64 << 20;
  const int64_t bytes = numel * static_cast<int64_t>(c10::elementSize(dtype));
  if (!like.is_cpu() || bytes > kMaxKept) return empty_like_device(like, {numel}, dtype);
  thread_local at::Tensor kept;
  // The storage is counted, not the tensor: whoever still reads the buffer holds an alias of it.
  const bool free = kept.defined() && kept.storage().use_count() == 1;
  if (!free || static_cast<int64_t>(kept.nbytes()) < bytes) {
    at::Tensor made = empty_like_device(like, {bytes}, at::kByte);
    if (kept.defined() && !free) return view_of(made, {numel}, dtype, 0);
    kept = std::move(made);
  }
  return view_of(kept, {numel}, dtype, 0);
}

}  // namespace tessera::exec
