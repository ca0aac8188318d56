#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/GradMode.h>
#include <c10/core/TensorImpl.h>

#include <memory>
#include <typeinfo>

#include "tessera/dtensor/tensor/view_list.h"
#include "tessera/sharding/sharding.h"

/// The representation of a DTensor: an at::Tensor with the backend key PrivateUse3, global sizes,
/// the local tensor's device, no storage, and a ShardedMeta. Private to dtensor/.
namespace tessera::dtensor {

constexpr c10::DispatchKey kKey = c10::DispatchKey::PrivateUse3;

class LazyLocal;  // lazy.h

/// What a copied view computes from its base. Each is its own inverse.
enum class ViewValue : uint8_t { same, conjugate, negative };

/// The base of a view that had to be copied; see dtensor/dispatch/gathered_views.cpp.
struct ViewOrigin {
  at::Tensor base;
  at::Tensor gathered;  ///< `value` of the redistributed base; the view shares its memory
  Sharding as;          ///< the sharding of the redistributed base
  ViewValue value = ViewValue::same;
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
  /// A view that had to be gathered, so it is a copy. A write to it would be lost: it is forwarded
  /// to the origin's base if there is one, otherwise rejected.
  bool is_copy_of_view() const { return is_copy_; }
  const std::shared_ptr<const ViewOrigin>& origin() const { return origin_; }
  void become_copy_of_view(std::shared_ptr<const ViewOrigin> origin) {
    is_copy_ = true;
    origin_ = std::move(origin);
  }
  /// Of a lazy tensor: made by an op that a backward ran, as recomputation does.
  bool is_made_in_backward() const { return is_made_in_backward_; }
  void become_made_in_backward() { is_made_in_backward_ = true; }
  /// Provides the value that ops compute with; nullptr: the local tensor is that value.
  const std::shared_ptr<LazyLocal>& lazy() const { return lazy_; }
  /// The views of the tensor that autograd may take again (dispatch/recorded_views.h).
  ViewList& views() const { return views_; }

 private:
  at::Tensor local_;
  Sharding sharding_;
  bool is_copy_ = false;
  bool is_made_in_backward_ = false;
  std::shared_ptr<LazyLocal> lazy_;
  std::shared_ptr<const ViewOrigin> origin_;
  mutable ViewList views_;  // taking a view of a tensor does not change the tensor
};

/// Holds the meta of a tensor that was plain and became sharded in place: its impl object cannot be
/// replaced, so the meta is stored in libtorch's slot for backends.
struct AttachedMeta final : c10::BackendMeta {
  explicit AttachedMeta(ShardedMeta meta) : meta(std::move(meta)) {}
  /// A copy of the tensor (variable_data, .data) has views of its own.
  c10::intrusive_ptr<c10::BackendMeta> clone(
      const c10::intrusive_ptr<c10::BackendMeta>&) const override {
    return c10::make_intrusive<AttachedMeta>(meta);
  }
  ShardedMeta meta;
};

/// The impl of a tensor created as sharded. Stores its meta inline: one allocation instead of the
/// three of AttachedMeta. Access to its storage throws with a reason; a plain TensorImpl would
/// return a null pointer.
class ShardedImpl final : public c10::TensorImpl {
 public:
  ShardedImpl(ShardedMeta meta, c10::DispatchKeySet keys, caffe2::TypeMeta dtype,
              c10::Device device)
      : TensorImpl(keys, dtype, device), meta_(std::move(meta)) {}
  ShardedImpl(at::Tensor&& local, const Sharding& sharding, c10::DispatchKeySet keys,
              caffe2::TypeMeta dtype, c10::Device device)
      : TensorImpl(keys, dtype, device), meta_(std::move(local), sharding) {}

  const ShardedMeta& meta() const { return meta_; }

  /// Takes over the sizes and strides of `like`, with the properties that libtorch derives from
  /// them.
  void set_sizes_and_strides_like(const ShardedImpl& like) {
    sizes_and_strides_ = like.sizes_and_strides_;
    numel_ = like.numel_;
    is_contiguous_ = like.is_contiguous_;
    is_channels_last_ = like.is_channels_last_;
    is_channels_last_contiguous_ = like.is_channels_last_contiguous_;
    is_channels_last_3d_ = like.is_channels_last_3d_;
    is_channels_last_3d_contiguous_ = like.is_channels_last_3d_contiguous_;
    is_non_overlapping_and_dense_ = like.is_non_overlapping_and_dense_;
  }

  /// Every op creates and frees results, so blocks are recycled.
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

/// Requires is_sharded_impl(impl).
inline const ShardedMeta& meta_of(c10::TensorImpl* impl) {
  if (const c10::BackendMeta* attached = impl->get_backend_meta()) {
    return static_cast<const AttachedMeta*>(attached)->meta;
  }
  if (typeid(*impl) != typeid(ShardedImpl)) [[unlikely]]
    throw_lost_meta();
  return static_cast<const ShardedImpl*>(impl)->meta();
}

/// nullptr for a plain or undefined tensor.
[[gnu::always_inline]] inline const ShardedMeta* sharded_meta(const at::Tensor& tensor) {
  c10::TensorImpl* impl = tensor.unsafeGetTensorImpl();
  return is_sharded_impl(impl) ? &meta_of(impl) : nullptr;
}

/// Copies a sharded tensor's meta to where a plain impl finds it that takes over its contents
/// (set_data).
void attach_meta(const at::Tensor& tensor);

/// A DTensor around `local`, which it shares. Unchecked, without autograd: `local` must be this
/// rank's part of `sharding`.
at::Tensor wrap(at::Tensor local, const Sharding& sharding);

/// What all tensors of one sharding on one device have in common besides it: dispatch keys, and the
/// sizes and strides with what libtorch derives from them. Computed once, then copied, which takes
/// half the time of a new tensor.
class TensorOutline {
 public:
  TensorOutline() = default;
  TensorOutline(const Sharding& sharding, c10::Device device);

  bool is_on(c10::Device device) const { return like_ != nullptr && like_->device() == device; }
  /// wrap(local, sharding) for the same sharding and a local tensor on the same device.
  at::Tensor wrap(at::Tensor local, const Sharding& sharding) const;

 private:
  c10::DispatchKeySet keys_;
  c10::intrusive_ptr<ShardedImpl> like_;  ///< has no local tensor
};

/// For a view that had to be copied; see ShardedMeta::is_copy_of_view.
at::Tensor wrap_copy_of_view(at::Tensor local, const Sharding& sharding);
/// Marks a new result as such a copy.
void mark_copy_of_view(const at::Tensor& tensor, std::shared_ptr<const ViewOrigin> origin);

/// A lazy DTensor; see lazy.h. `local` may be undefined.
at::Tensor wrap_lazy(at::Tensor local, const Sharding& sharding, c10::Device device,
                     std::shared_ptr<LazyLocal> lazy);
/// Marks a new lazy result; see ShardedMeta::is_made_in_backward.
void mark_made_in_backward(const at::Tensor& tensor);

/// Makes an existing tensor, plain or sharded, a DTensor in place: all references to it see the
/// change.
void become(const at::Tensor& tensor, at::Tensor local, const Sharding& sharding,
            std::shared_ptr<LazyLocal> lazy = nullptr);

/// Whether autograd records an op that uses the tensor now.
inline bool records_uses(const at::Tensor& tensor) {
  return tensor.requires_grad() && c10::GradMode::is_enabled();
}

bool is_row_major(const Sharding& sharding);

/// The local tensor with the strides of its sharding; copied if they differ, because kernels rely
/// on the reported strides. Resolves lazy conjugation and negation.
at::Tensor strided_as(const at::Tensor& local, const Sharding& as);

}  // namespace tessera::dtensor
