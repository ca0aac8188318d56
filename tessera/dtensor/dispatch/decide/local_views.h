#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/DispatchKeySet.h>

#include <typeinfo>
#include <vector>

namespace tessera::dtensor {

/// The views that a view op returned for a local tensor. A decision fixes the op's other arguments,
/// so a local tensor of the same sizes and strides has the same views: they are made again without
/// a call of libtorch, which saves 1,500 instructions for t, 600 for view and 400 for detach.
///
///   t of a local [4, 8] with strides [8, 1]  ->  sizes [8, 4], strides [1, 8], offset 0
///
/// Ordinary strided tensors only; others (quantized, of a Python class) are never known.
class LocalViews {
 public:
  /// Keeps the metadata of `views`, the views of `base` in the order of the op's results. No effect
  /// if one of them is not an ordinary view.
  void keep(const at::Tensor& base, at::ArrayRef<at::Tensor> views);

  bool are_known_for(const at::Tensor& base) const {
    const c10::TensorImpl& impl = *base.unsafeGetTensorImpl();
    return !views_.empty() && impl.key_set() == keys_ && impl.dtype() == dtype_ &&
           impl.sizes() == at::IntArrayRef(sizes_) && impl.strides() == at::IntArrayRef(strides_) &&
           is_ordinary(impl);
  }
  size_t count() const { return views_.size(); }
  /// View `index` of `base`, for which the views are known. It has its own version counter, as the
  /// result of a call below autograd.
  at::Tensor make(const at::Tensor& base, size_t index) const;

 private:
  struct View {
    std::vector<int64_t> sizes;
    std::vector<int64_t> strides;
    int64_t offset;  ///< from the first element of the base
    bool allows_metadata_change;
  };

  static bool is_ordinary(const c10::TensorImpl& impl) {
    return typeid(impl) == typeid(c10::TensorImpl) && impl.has_storage() &&
           !impl.is_wrapped_number();
  }

  c10::DispatchKeySet keys_;
  caffe2::TypeMeta dtype_;
  std::vector<int64_t> sizes_;
  std::vector<int64_t> strides_;
  std::vector<View> views_;
};

}  // namespace tessera::dtensor
