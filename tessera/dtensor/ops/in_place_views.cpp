#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/ops/squeeze.h>
#include <ATen/ops/t.h>
#include <ATen/ops/transpose.h>
#include <ATen/ops/unsqueeze.h>
#include <c10/core/WrapDimMinimal.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>
#include <array>
#include <memory>
#include <string_view>
#include <utility>
#include <vector>

#include "tessera/base/errors.h"
#include "tessera/dtensor/dispatch/dispatch.h"
#include "tessera/dtensor/dispatch/recorded_views.h"
#include "tessera/dtensor/kernels/register.h"
#include "tessera/dtensor/ops/install.h"

/// t_, transpose_ and similar ops change a tensor's shape in place. Takes the equivalent view, and
/// makes the tensor become it.
///
/// Autograd takes views again from their base after a write (dispatch/view_replay.h):
///
///   a view is transposed       its function gets the transposition as its last step
///   a base is transposed       the functions of its views get a first step that undoes it
///                              (dispatch/recorded_views.h)
namespace tessera::dtensor {
namespace {

struct InPlaceView {
  const char* op;
  const char* view;
  const char* overload;
};

constexpr std::array<InPlaceView, 6> kViews = {{{"aten::t_", "aten::t", ""},
                                                {"aten::transpose_", "aten::transpose", "int"},
                                                {"aten::unsqueeze_", "aten::unsqueeze", ""},
                                                {"aten::squeeze_", "aten::squeeze", ""},
                                                {"aten::squeeze_.dim", "aten::squeeze", "dim"},
                                                {"aten::squeeze_.dims", "aten::squeeze", "dims"}}};

/// The function of a view that changed its shape: the function it had, then the op.
class ReshapedView final : public torch::autograd::ViewFunc {
 public:
  ReshapedView(std::unique_ptr<ViewFunc> before, c10::OperatorHandle op, Stack args)
      : before_(std::move(before)), op_(std::move(op)), args_(std::move(args)) {}

  at::Tensor operator()(const at::Tensor& base) const override {
    Stack stack = {(*before_)(base)};
    stack.insert(stack.end(), args_.begin(), args_.end());
    op_.callBoxed(&stack);
    return stack.front().toTensor();
  }
  std::unique_ptr<ViewFunc> clone_and_set(
      std::optional<std::vector<c10::SymInt>> = std::nullopt,
      std::optional<std::vector<at::Tensor>> = std::nullopt) const override {
    return std::make_unique<ReshapedView>(before_->clone_and_set(), op_, args_);
  }

 private:
  std::unique_ptr<ViewFunc> before_;
  c10::OperatorHandle op_;
  Stack args_;  // all but the tensor
};

const torch::autograd::DifferentiableViewMeta* view_meta(const at::Tensor& tensor) {
  const auto* meta = torch::autograd::impl::get_view_autograd_meta(tensor);
  return meta != nullptr && meta->has_bw_view() ? meta : nullptr;
}

void extend_view_function(const at::Tensor& self, const c10::OperatorHandle& op, Stack args) {
  const auto* meta = view_meta(self);
  if (meta == nullptr || !meta->get_backward_view().has_view_fn()) return;
  // libtorch has no setter; the object itself is not const.
  auto& info = const_cast<torch::autograd::ViewInfo&>(meta->get_backward_view());
  auto function =
      std::make_unique<ReshapedView>(info.view_fn().clone_and_set(), op, std::move(args));
  info = torch::autograd::ViewInfo(info.base_, std::move(function), info.rev_view_fn());
}

/// The dims of size 1 that squeeze_ removed: all, one or several by number.
std::vector<int64_t> squeezed_dims(at::IntArrayRef before, const Stack& args) {
  std::vector<int64_t> dims;
  if (args.empty()) {
    for (int64_t d = 0; d < std::ssize(before); ++d) dims.push_back(d);
  } else {
    dims = args[0].isInt() ? std::vector<int64_t>{args[0].toInt()} : args[0].toIntVector();
  }
  for (int64_t& d : dims) d = c10::maybe_wrap_dim(d, std::ssize(before));
  std::erase_if(dims,
                [&](int64_t d) { return before.empty() || before[static_cast<size_t>(d)] != 1; });
  std::ranges::sort(dims);
  return dims;
}

/// Undoes `view` with these arguments for a tensor that had the sizes `before`.
RestoreShape inverse_of(const InPlaceView& view, at::IntArrayRef before, const Stack& args) {
  const std::string_view op = view.view;
  if (op == "aten::t") return [](const at::Tensor& base) { return base.t(); };
  if (op == "aten::transpose") {
    return [a = args[0].toInt(), b = args[1].toInt()](const at::Tensor& base) {
      return base.transpose(a, b);
    };
  }
  if (op == "aten::unsqueeze") {
    return [d = c10::maybe_wrap_dim(args[0].toInt(), std::ssize(before) + 1)](
               const at::Tensor& base) { return base.squeeze(d); };
  }
  return [dims = squeezed_dims(before, args)](const at::Tensor& base) {
    at::Tensor out = base;
    for (const int64_t d : dims) out = out.unsqueeze(d);
    return out;
  };
}

bool become_view(const OpEntry& entry, const c10::OperatorHandle&, Stack& stack) {
  const at::Tensor self = stack[stack.size() - entry.args.size()].toTensor();
  const auto view = std::ranges::find(kViews, entry.name, &InPlaceView::op);
  const Stack args(stack.end() - static_cast<int64_t>(entry.args.size()) + 1, stack.end());
  const auto op = c10::Dispatcher::singleton().findSchemaOrThrow(view->view, view->overload);
  op.callBoxed(&stack);
  const at::Tensor result = torch::jit::pop(stack).toTensor();
  const ShardedMeta* meta = sharded_meta(result);
  require(!meta->is_copy_of_view(), entry.name, " of ", sharded_meta(self)->sharding(),
          " would have to gather it; redistribute it first, or use the form that returns a view");
  const RestoreShape restore = inverse_of(*view, self.sizes(), args);
  become(self, meta->local(), meta->sharding());
  self.unsafeGetTensorImpl()->set_storage_offset(result.storage_offset());
  restore_for_views(self, restore);
  extend_view_function(self, op, args);
  torch::jit::push(stack, self);
  return true;
}

/// A sharded tensor cannot grow, because its memory is distributed.
bool resize(const OpEntry& entry, const c10::OperatorHandle&, Stack& stack) {
  const auto args = torch::jit::last(stack, entry.args.size());
  const at::Tensor self = args[0].toTensor();
  const std::vector<int64_t> shape = args[1].toIntVector();
  require(self.sizes().equals(shape), entry.name, " of ", sharded_meta(self)->sharding(), " to ",
          shape_text(shape), ": a sharded tensor cannot be resized in place; make a new one");
  torch::jit::drop(stack, entry.args.size());
  torch::jit::push(stack, self);
  return true;
}

}  // namespace

void install_in_place_views() {
  for (const auto& view : kViews) set_decomposition(view.op, become_view);
  set_decomposition("aten::resize_", resize);
}

}  // namespace tessera::dtensor
