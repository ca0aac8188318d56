#include "tessera/fsdp/memory_views.h"

namespace tessera::fsdp {

at::Tensor placed(const at::Tensor& memory, int64_t byte_offset, at::IntArrayRef shape,
                  at::ScalarType dtype) {
  const c10::TensorImpl& bytes = *memory.unsafeGetTensorImpl();
  auto impl = c10::make_intrusive<c10::TensorImpl>(
      c10::Storage(bytes.unsafe_storage()), bytes.key_set(), c10::scalarTypeToTypeMeta(dtype));
  impl->set_sizes_contiguous(shape);
  const int64_t from = bytes.storage_offset() + byte_offset;
  impl->set_storage_offset(from / static_cast<int64_t>(c10::elementSize(dtype)));
  return at::Tensor(std::move(impl));
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
  const c10::TensorImpl& whole = *flat.unsafeGetTensorImpl();
  auto impl = c10::make_intrusive<c10::TensorImpl>(c10::Storage(whole.unsafe_storage()),
                                                   whole.key_set(), whole.dtype());
  impl->set_sizes_contiguous(shape);
  impl->set_storage_offset(whole.storage_offset() + begin);
  impl->set_version_counter(whole.version_counter());
  return at::Tensor(std::move(impl));
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
