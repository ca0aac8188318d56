#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/TensorImpl.h>

#include <memory>
#include <typeinfo>

#include "tessera/sharding/sharding.h"

/// What makes an at::Tensor a DTensor: the backend key PrivateUse3, global sizes, the local
/// tensor's device, no storage, and a ShardedMeta. Only dtensor/ looks inside.
namespace tessera::dtensor {

constexpr c10::DispatchKey kKey = c10::DispatchKey::PrivateUse3;

class LazyLocal;  // lazy.h

/// What a view that had to be gathered is really a view of; see gathered_views.cpp.
struct ViewOrigin {
  at::Tensor base;
  at::Tensor gathered;  ///< the base's value, redistributed; the view shares its memory
  Sharding as;          ///< how that lies
};

class ShardedMeta {
 public:
  ShardedMeta() = default;
  ShardedMeta(at::Tensor local, Sharding sharding, bool is_copy = false,
              std::shared_ptr<LazyLocal> lazy = nullptr)
      : local_(std::move(local)),
        sharding_(std::move(sharding)),
        is_copy_(is_copy),
        lazy_(std::move(lazy)) {}

  const at::Tensor& local() const { return local_; }
  const Sharding& sharding() const { return sharding_; }
  /// What should be a view had to be gathered: a write to it would be lost, so it is refused, or
  /// moves on into the origin's base where there is one.
  bool is_copy_of_view() const { return is_copy_; }
  const std::shared_ptr<const ViewOrigin>& origin() const { return origin_; }
  void become_copy_of_view(std::shared_ptr<const ViewOrigin> origin) {
    is_copy_ = true;
    origin_ = std::move(origin);
  }
  /// Who produces the value that ops compute with; nullptr: the local tensor is it.
  const std::shared_ptr<LazyLocal>& lazy() const { return lazy_; }

 private:
  at::Tensor local_;
  Sharding sharding_;
  bool is_copy_ = false;
  std::shared_ptr<LazyLocal> lazy_;
  std::shared_ptr<const ViewOrigin> origin_;
};

/// Where the meta lies of a tensor that was plain once and became sharded: its impl stays what it
/// was, so the meta goes where libtorch has room for a backend's.
struct AttachedMeta final : c10::BackendMeta {
  explicit AttachedMeta(ShardedMeta meta) : meta(std::move(meta)) {}
  ShardedMeta meta;
};

/// A tensor that is born sharded holds its meta itself: one allocation where AttachedMeta takes
/// three. Refuses access to its storage with a reason, where a plain TensorImpl gives a null
/// pointer.
class ShardedImpl final : public c10::TensorImpl {
 public:
  ShardedImpl(ShardedMeta meta, c10::DispatchKeySet keys, caffe2::TypeMeta dtype,
              c10::Device device)
      : TensorImpl(keys, dtype, device), meta_(std::move(meta)) {}

  const ShardedMeta& meta() const { return meta_; }

  /// Results come and go with every op, so their memory is kept for the next one.
  static void* operator new(size_t size);
  static void operator delete(void* memory, size_t size);

  c10::intrusive_ptr<c10::TensorImpl> shallow_copy_and_detach(
      const c10::VariableVersion& version, bool allow_metadata_change) const override;
  c10::intrusive_ptr<c10::TensorImpl> shallow_copy_and_detach(
      c10::VariableVersion&& version, bool allow_metadata_change) const override;
  void shallow_copy_from(const c10::intrusive_ptr<c10::TensorImpl>& from) override;
  void release_resources() override;

 private:
  const char* tensorimpl_type_name() const override;

  ShardedMeta meta_;
};

inline bool is_sharded_impl(const c10::TensorImpl* impl) {
  return impl->key_set().has_backend(c10::BackendComponent::PrivateUse3Bit);
}

[[noreturn]] void throw_lost_meta();

/// Of an impl that is_sharded_impl.
inline const ShardedMeta& meta_of(c10::TensorImpl* impl) {
  if (const c10::BackendMeta* attached = impl->get_backend_meta()) {
    return static_cast<const AttachedMeta*>(attached)->meta;
  }
  if (typeid(*impl) != typeid(ShardedImpl)) [[unlikely]]
    throw_lost_meta();
  return static_cast<const ShardedImpl*>(impl)->meta();
}

/// nullptr for a plain or undefined tensor.
inline const ShardedMeta* sharded_meta(const at::Tensor& tensor) {
  c10::TensorImpl* impl = tensor.unsafeGetTensorImpl();
  return is_sharded_impl(impl) ? &meta_of(impl) : nullptr;
}

/// Puts a sharded tensor's meta where a plain impl that takes its insides over (set_data) finds it.
void attach_meta(const at::Tensor& tensor);

/// A DTensor around `local`, which it shares. No check, no autograd: `local` must be this rank's
/// part of `sharding`.
at::Tensor wrap(at::Tensor local, const Sharding& sharding);
/// The same where the sharding's shape and stride are at hand.
at::Tensor wrap(at::Tensor local, const Sharding& sharding, at::IntArrayRef shape,
                at::IntArrayRef stride);
/// The same for a view that is none; see ShardedMeta::is_copy_of_view.
at::Tensor wrap_copy_of_view(at::Tensor local, const Sharding& sharding);
/// Makes a fresh result one.
void mark_copy_of_view(const at::Tensor& tensor, std::shared_ptr<const ViewOrigin> origin);

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
