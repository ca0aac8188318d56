#include "tessera/dtensor/sharded_tensor.h"

#include <c10/core/DispatchKeySet.h>

namespace tessera::dtensor {
namespace {

/// Autocast is not implied by a private backend key; it follows the device that computes.
c10::DispatchKeySet keys_for(c10::DeviceType device) {
  c10::DispatchKeySet keys(kKey);
  if (device == c10::DeviceType::CPU) return keys.add(c10::DispatchKey::AutocastCPU);
  if (device == c10::DeviceType::CUDA) return keys.add(c10::DispatchKey::AutocastCUDA);
  return keys;
}

c10::intrusive_ptr<c10::TensorImpl> make_impl(at::Tensor local, const Sharding& sharding,
                                              bool is_copy = false) {
  auto impl = c10::make_intrusive<c10::TensorImpl>(keys_for(local.device().type()), local.dtype(),
                                                   local.device());
  impl->set_sizes_and_strides(c10::IntArrayRef(sharding.shape().data(), sharding.shape().size()),
                              c10::IntArrayRef(sharding.stride().data(), sharding.stride().size()));
  impl->set_backend_meta(c10::make_intrusive<ShardedMeta>(std::move(local), sharding, is_copy));
  return impl;
}

}  // namespace

at::Tensor wrap(at::Tensor local, const Sharding& sharding) {
  return at::Tensor(make_impl(std::move(local), sharding));
}

at::Tensor wrap_copy_of_view(at::Tensor local, const Sharding& sharding) {
  return at::Tensor(make_impl(std::move(local), sharding, /*is_copy=*/true));
}

void become(const at::Tensor& tensor, at::Tensor local, const Sharding& sharding) {
  tensor.unsafeGetTensorImpl()->shallow_copy_from(make_impl(std::move(local), sharding));
}

}  // namespace tessera::dtensor
