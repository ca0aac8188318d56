#include "tessera/dtensor/dispatch/recorded_views.h"

#include <torch/csrc/autograd/variable.h>

#include <memory>
#include <optional>
#include <utility>

#include "tessera/dtensor/tensor/sharded_tensor.h"

namespace tessera::dtensor {
namespace {

const torch::autograd::DifferentiableViewMeta* recorded_meta(const at::Tensor& view) {
  const auto* meta = torch::autograd::impl::get_view_autograd_meta(view);
  if (meta == nullptr || !meta->has_bw_view()) return nullptr;
  return meta->get_backward_view().has_view_fn() ? meta : nullptr;
}

/// The function of a view whose base changed its shape.
class ViewOfReshaped final : public torch::autograd::ViewFunc {
 public:
  ViewOfReshaped(RestoreShape restore, std::unique_ptr<ViewFunc> view)
      : restore_(std::move(restore)), view_(std::move(view)) {}

  at::Tensor operator()(const at::Tensor& base) const override { return (*view_)(restore_(base)); }
  std::unique_ptr<ViewFunc> clone_and_set(
      std::optional<std::vector<c10::SymInt>> = std::nullopt,
      std::optional<std::vector<at::Tensor>> = std::nullopt) const override {
    return std::make_unique<ViewOfReshaped>(restore_, view_->clone_and_set());
  }

 private:
  RestoreShape restore_;
  std::unique_ptr<ViewFunc> view_;
};

}  // namespace

void record_view(const at::Tensor& view) {
  const auto* meta = recorded_meta(view);
  if (meta == nullptr) return;
  const ShardedMeta* base = sharded_meta(meta->get_backward_view().base_);
  if (base != nullptr) base->views().add(view);
}

void record_view(const std::vector<at::Tensor>& views) {
  for (const at::Tensor& view : views) record_view(view);
}

void record_view(const c10::IValue& result) {
  if (result.isTensor()) return record_view(result.toTensor());
  if (result.isTensorList()) record_view(result.toTensorVector());
}

void restore_for_views(const at::Tensor& base, const RestoreShape& restore) {
  for (const at::Tensor& view : sharded_meta(base)->views().live()) {
    const auto* meta = recorded_meta(view);
    // A view may have got another base.
    if (meta == nullptr || !meta->get_backward_view().base_.is_same(base)) continue;
    // libtorch has no setter; the object itself is not const.
    auto& info = const_cast<torch::autograd::ViewInfo&>(meta->get_backward_view());
    auto function = std::make_unique<ViewOfReshaped>(restore, info.view_fn().clone_and_set());
    info = torch::autograd::ViewInfo(info.base_, std::move(function), info.rev_view_fn());
  }
}

}  // namespace tessera::dtensor
