#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/TensorImpl.h>

#include <memory>

#include "tessera/sharding/sharding.h"

/// What makes an at::Tensor a DTensor: the backend key PrivateUse3, global sizes, the local
/// tensor's device, no storage, and this in its BackendMeta. Only dtensor/ looks inside.
namespace tessera::dtensor {

constexpr c10::DispatchKey kKey = c10::DispatchKey::PrivateUse3;

class LazyLocal;  // lazy.h

class ShardedMeta final : public c10::BackendMeta {
 public:
  ShardedMeta(at::Tensor local, Sharding sharding, bool is_copy = false,
              std::shared_ptr<LazyLocal> lazy = nullptr)
      : local_(std::move(local)),
        sharding_(std::move(sharding)),
        is_copy_(is_copy),
        lazy_(std::move(lazy)) {}

  const at::Tensor& local() const { return local_; }
  const Sharding& sharding() const { return sharding_; }
  /// What should be a view had to be gathered: a write to it would be lost, so it is refused.
  bool is_copy_of_view() const { return is_copy_; }
  /// Who produces the value that ops compute with; nullptr: the local tensor is it.
  const std::shared_ptr<LazyLocal>& lazy() const { return lazy_; }

 private:
  at::Tensor local_;
  Sharding sharding_;
  bool is_copy_;
  std::shared_ptr<LazyLocal> lazy_;
};

inline bool is_sharded_impl(const c10::TensorImpl* impl) {
  return impl->key_set().has_backend(c10::BackendComponent::PrivateUse3Bit);
}

/// nullptr for a plain or undefined tensor.
inline const ShardedMeta* sharded_meta(const at::Tensor& tensor) {
  c10::TensorImpl* impl = tensor.unsafeGetTensorImpl();
  if (!tensor.defined() || !is_sharded_impl(impl)) return nullptr;
  return static_cast<const ShardedMeta*>(impl->get_backend_meta());
}

/// A DTensor around `local`, which it shares. No check, no autograd: `local` must be this rank's
/// part of `sharding`.
at::Tensor wrap(at::Tensor local, const Sharding& sharding);
/// The same for a view that is none; see ShardedMeta::is_copy_of_view.
at::Tensor wrap_copy_of_view(at::Tensor local, const Sharding& sharding);

/// A lazy DTensor; see lazy.h. `local` may be undefined.
at::Tensor wrap_lazy(at::Tensor local, const Sharding& sharding, c10::Device device,
                     std::shared_ptr<LazyLocal> lazy);

/// Makes an existing tensor, plain or sharded, a DTensor in place: every handle to it sees it.
void become(const at::Tensor& tensor, at::Tensor local, const Sharding& sharding,
            std::shared_ptr<LazyLocal> lazy = nullptr);

bool is_row_major(const Sharding& sharding);

/// The local tensor with the strides of its sharding, copied if it has others: a tensor reports
/// strides, and kernels trust them. Conjugate and negative bits are resolved.
at::Tensor strided_as(const at::Tensor& local, const Sharding& as);

}  // namespace tessera::dtensor
