#include "tessera/dtensor/dispatch/decide/local_views.h"

#include <c10/core/TensorImpl.h>

#include <algorithm>
#include <utility>

namespace tessera::dtensor {

void LocalViews::keep(const at::Tensor& base, at::ArrayRef<at::Tensor> views) {
  views_.clear();
  const c10::TensorImpl& viewed = *base.unsafeGetTensorImpl();
  if (!is_ordinary(viewed) || viewed.is_python_dispatch() || base.layout() != at::kStrided) return;
  const bool are_views = std::ranges::all_of(views, [&](const at::Tensor& view) {
    const c10::TensorImpl& impl = *view.unsafeGetTensorImpl();
    return is_ordinary(impl) && impl.key_set() == viewed.key_set() &&
           impl.dtype() == viewed.dtype() && view.is_alias_of(base);
  });
  if (!are_views) return;
  keys_ = viewed.key_set();
  dtype_ = viewed.dtype();
  sizes_ = base.sizes().vec();
  strides_ = base.strides().vec();
  for (const at::Tensor& view : views) {
    views_.push_back({view.sizes().vec(), view.strides().vec(),
                      view.storage_offset() - base.storage_offset(),
                      view.unsafeGetTensorImpl()->allow_tensor_metadata_change()});
  }
}

at::Tensor LocalViews::make(const at::Tensor& base, size_t index) const {
  const View& view = views_[index];
  auto impl = c10::make_intrusive<c10::TensorImpl>(c10::TensorImpl::VIEW,
                                                   c10::Storage(base.storage()), keys_, dtype_);
  impl->set_sizes_and_strides(view.sizes, view.strides, base.storage_offset() + view.offset);
  if (!view.allows_metadata_change) impl->set_allow_tensor_metadata_change(false);
  return at::Tensor(std::move(impl));
}

}  // namespace tessera::dtensor
