#include "tessera/dtensor/dispatch/view_replay.h"

#include <ATen/ops/alias_ops.h>
#include <ATen/ops/detach_ops.h>
#include <ATen/ops/expand_ops.h>
#include <ATen/ops/permute_ops.h>
#include <ATen/ops/select_ops.h>
#include <ATen/ops/slice_ops.h>
#include <ATen/ops/split_ops.h>
#include <ATen/ops/squeeze_ops.h>
#include <ATen/ops/t_ops.h>
#include <ATen/ops/transpose_ops.h>
#include <ATen/ops/unbind_ops.h>
#include <ATen/ops/unsqueeze_ops.h>
#include <ATen/ops/view_ops.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/functions/tensor.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>
#include <array>
#include <memory>
#include <string_view>
#include <utility>

#include "tessera/base/errors.h"

namespace tessera::dtensor {
namespace {

/// The same call with libtorch's autograd kernel next, which is registered for all backends: here
/// by the key of those that have none of their own.
c10::DispatchKeySet with_formulas(c10::DispatchKeySet keys) {
  return keys.remove(c10::DispatchKey::AutogradPrivateUse3) |
         c10::DispatchKeySet(c10::DispatchKey::AutogradOther);
}

class BoxedViewKernel final : public c10::OperatorKernel {
 public:
  void operator()(const c10::OperatorHandle& op, c10::DispatchKeySet keys,
                  torch::jit::Stack* stack) {
    const auto args = torch::jit::last(*stack, op.schema().arguments().size());
    const ViewFunctionScope scope(args[0].toTensor());
    op.redispatchBoxed(with_formulas(keys), stack);
    for (const auto& result : torch::jit::last(*stack, op.schema().returns().size())) {
      scope.record(result);
    }
  }
};

/// Instantiated per signature; boxing costs several times as much as the scope.
template <class Schema>
class ViewKernel;

template <class Result, class... Args>
class ViewKernel<Result(const at::Tensor&, Args...)> final : public c10::OperatorKernel {
 public:
  using Redispatch = Result (*)(c10::DispatchKeySet, const at::Tensor&, Args...);
  explicit ViewKernel(Redispatch redispatch) : redispatch_(redispatch) {}

  Result operator()(c10::DispatchKeySet keys, const at::Tensor& base, Args... args) {
    const ViewFunctionScope scope(base);
    Result views = redispatch_(with_formulas(keys), base, std::forward<Args>(args)...);
    scope.record(views);
    return views;
  }

 private:
  Redispatch redispatch_;
};

struct TypedView {
  std::string_view name;
  std::string_view overload;
  c10::KernelFunction (*make)();
};

template <class Op>
c10::KernelFunction make_view_kernel() {
  using Kernel = ViewKernel<typename Op::schema>;
  return c10::KernelFunction::makeFromUnboxedFunctor<false, Kernel>(
      std::make_unique<Kernel>(Op::redispatch));
}

template <class... Ops>
constexpr std::array<TypedView, sizeof...(Ops)> typed_views() {
  return {TypedView{Ops::name, Ops::overload_name, make_view_kernel<Ops>}...};
}

constexpr auto kTypedViews =
    typed_views<at::_ops::alias, at::_ops::detach, at::_ops::expand, at::_ops::permute,
                at::_ops::select_int, at::_ops::slice_Tensor, at::_ops::split_Tensor,
                at::_ops::squeeze_dim, at::_ops::t, at::_ops::transpose_int, at::_ops::unbind_int,
                at::_ops::unsqueeze, at::_ops::view>();

}  // namespace

c10::KernelFunction view_kernel(const c10::OperatorHandle& op) {
  const auto& name = op.operator_name();
  const auto found = std::ranges::find_if(kTypedViews, [&](const TypedView& typed) {
    return typed.name == name.name && typed.overload == name.overload_name;
  });
  if (found != kTypedViews.end()) return found->make();
  return c10::KernelFunction::makeFromBoxedFunctor(std::make_unique<BoxedViewKernel>());
}

bool has_view_function(const at::Tensor& view) {
  const auto* meta = torch::autograd::impl::get_view_autograd_meta(view);
  return meta != nullptr && meta->has_bw_view() && meta->get_backward_view().has_view_fn();
}

void refuse_view_by_strides() {
  const auto node = torch::autograd::get_current_node();
  if (node == nullptr) return;
  const auto* write = dynamic_cast<const torch::autograd::CopySlices*>(&*node);
  if (write == nullptr || write->view_fn != nullptr) return;
  throw NotSupported(
      "the gradient of a write to a view that was taken before its base became sharded: the view "
      "is known by strides alone, which a sharded tensor does not have; take the view after the "
      "base has been distributed");
}

}  // namespace tessera::dtensor
