#include "tessera/fsdp/buffers/memory_views.h"

#include "tessera/collective/algorithms/flat_view.h"

namespace tessera::fsdp {

at::Tensor placed(const at::Tensor& memory, int64_t byte_offset, at::IntArrayRef shape,
                  at::ScalarType dtype) {
  const auto element = static_cast<int64_t>(c10::elementSize(dtype));
  return comm::storage_view(memory, shape, (memory.storage_offset() + byte_offset) / element,
                            dtype);
}

at::Tensor as_numbers(at::Tensor memory, at::ScalarType dtype) {
  const int64_t count = memory.numel() / static_cast<int64_t>(c10::elementSize(dtype));
  c10::TensorImpl& impl = *memory.unsafeGetTensorImpl();
  if (memory.use_count() > 1 || impl.storage_offset() != 0)
    return placed(memory, 0, {count}, dtype);
  impl.set_storage_and_dtype(c10::Storage(impl.unsafe_storage()), c10::scalarTypeToTypeMeta(dtype));
  impl.set_sizes_contiguous({count});
  return memory;
}

at::Tensor part_of(const at::Tensor& flat, int64_t begin, at::IntArrayRef shape) {
  const at::Tensor part =
      comm::storage_view(flat, shape, flat.storage_offset() + begin, flat.scalar_type());
  part.unsafeGetTensorImpl()->set_version_counter(flat.unsafeGetTensorImpl()->version_counter());
  return part;
}

at::Tensor storageless(const at::Tensor& like) {
  c10::Storage storage(c10::Storage::use_byte_size_t(), 0, at::DataPtr(nullptr, like.device()),
                       /*allocator=*/nullptr, /*resizable=*/false);
  auto impl =
      c10::make_intrusive<c10::TensorImpl>(std::move(storage), like.key_set(), like.dtype());
  impl->set_sizes_contiguous(like.sizes());
  return at::Tensor(std::move(impl));
}

void attach_storage(const at::Tensor& storageless, at::DataPtr memory) {
  c10::StorageImpl& storage = *storageless.storage().unsafeGetStorageImpl();
  storage.set_data_ptr_noswap(std::move(memory));
  storage.set_nbytes(storageless.nbytes());
}

void detach_storage(const at::Tensor& storageless) {
  c10::StorageImpl& storage = *storageless.storage().unsafeGetStorageImpl();
  storage.set_nbytes(0);
  storage.set_data_ptr_noswap(at::DataPtr(nullptr, storageless.device()));
}

}  // namespace tessera::fsdp
