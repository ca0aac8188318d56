#include "tessera/interp/weights.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>

#include "tessera/base/errors.h"
#include "tessera/interp/convert_argument.h"

namespace tessera::interp {
namespace {

/// Kernels need elements at multiples of their size, 16 at most. PyTorch writes records at
/// multiples of 64.
constexpr size_t kAlignment = 16;

std::vector<int64_t> numbers_of(const std::vector<program::Size>& sizes) {
  std::vector<int64_t> out;
  for (const auto& size : sizes) out.push_back(size.number());
  return out;
}

c10::Storage mapped_storage(std::span<const std::byte> bytes,
                            const std::shared_ptr<const files::MappedFile>& file) {
  auto* data = const_cast<std::byte*>(bytes.data());  // the mapping is private and writable
  auto* keep = new std::shared_ptr<const files::MappedFile>(file);
  c10::DataPtr pointer(
      data, keep, [](void* held) { delete static_cast<decltype(keep)>(held); }, c10::kCPU);
  return {c10::Storage::use_byte_size_t(), bytes.size(), std::move(pointer)};
}

}  // namespace

Weights::Weights(std::shared_ptr<const program::Archive> archive, std::optional<c10::Device> device)
    : archive_(std::move(archive)), device_(device) {}

at::Tensor Weights::weight(const program::Payload& payload) {
  return tensor(payload, archive_->bytes_of_weight(payload));
}

at::Tensor Weights::constant(const program::Payload& payload) {
  return tensor(payload, archive_->bytes_of_constant(payload));
}

const c10::Storage& Weights::storage(std::span<const std::byte> bytes, c10::Device device) {
  const auto found = storages_.find(bytes.data());
  if (found != storages_.end()) return found->second;
  c10::Storage mapped = mapped_storage(bytes, archive_->zip().file());
  const bool aligned = reinterpret_cast<uintptr_t>(bytes.data()) % kAlignment == 0;
  if (!device.is_cpu() || !aligned) {
    const at::Tensor view =
        at::empty({0}, at::kByte).set_(mapped, 0, {static_cast<int64_t>(bytes.size())}, {1});
    mapped = device.is_cpu() ? view.clone().storage() : view.to(device).storage();
  }
  return storages_.emplace(bytes.data(), std::move(mapped)).first->second;
}

at::Tensor Weights::tensor(const program::Payload& payload, std::span<const std::byte> bytes) {
  if (payload.use_pickle || !payload.meta) {
    throw NotSupported(join_text(archive_->path(), ": ", payload.name,
                                 " is a Python object, which this library cannot read"));
  }
  const program::TensorMeta& meta = *payload.meta;
  if (meta.layout != program::Layout::strided) {
    throw NotSupported(join_text(archive_->path(), ": ", payload.name, " is a sparse tensor"));
  }
  const c10::Device device = device_.value_or(to_device(meta.device));
  const auto dtype = static_cast<c10::ScalarType>(meta.dtype);
  const at::NoGradGuard no_grad;
  at::Tensor out = at::empty({0}, at::TensorOptions().dtype(dtype).device(device));
  out.set_(storage(bytes, device), meta.storage_offset.number(), numbers_of(meta.sizes),
           numbers_of(meta.strides));
  // Some kernels choose by it how they compute, so that it matters for equal bits.
  out.set_requires_grad(meta.requires_grad &&
                        (c10::isFloatingType(dtype) || c10::isComplexType(dtype)));
  return out;
}

}  // namespace tessera::interp
