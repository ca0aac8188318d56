#include "tessera/dtensor/dispatch/placed_gradient.h"

#include <ATen/ops/zeros.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/csrc/autograd/function_hook.h>

#include <algorithm>
#include <array>
#include <optional>
#include <string_view>
#include <typeinfo>

#include "tessera/dtensor/autograd.h"
#include "tessera/dtensor/dispatch/dispatch.h"
#include "tessera/dtensor/dispatch/view_replay.h"
#include "tessera/dtensor/dtensor.h"
#include "tessera/dtensor/held_value.h"
#include "tessera/dtensor/tensor/view_origin.h"

namespace tessera::dtensor {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::Variable;
using torch::autograd::variable_list;

/// All create zeros by size, except matrix_exp, which computes in a larger plain matrix. For cat
/// and block_diag this concerns only 1-dim empty tensors; for strided views only those without
/// elements.
constexpr auto kOps = std::to_array<std::string_view>({
    "aten::_adaptive_avg_pool2d_backward",
    "aten::_adaptive_avg_pool3d_backward",
    "aten::_prelu_kernel_backward",
    "aten::adaptive_max_pool2d_backward",
    "aten::adaptive_max_pool3d_backward",
    "aten::as_strided",
    "aten::as_strided_copy",
    "aten::avg_pool2d_backward",
    "aten::avg_pool3d_backward",
    "aten::bernoulli",
    "aten::block_diag",
    "aten::cat",
    "aten::copysign",
    "aten::fractional_max_pool2d_backward",
    "aten::fractional_max_pool3d_backward",
    "aten::linalg_matrix_exp",
    "aten::max_pool2d_with_indices_backward",
    "aten::max_pool3d_with_indices_backward",
    "aten::nextafter",
    "aten::normal",
    "aten::poisson",
    "aten::reflection_pad1d_backward",
    "aten::reflection_pad2d_backward",
    "aten::reflection_pad3d_backward",
    "aten::repeat",
    "aten::replication_pad1d_backward",
    "aten::replication_pad2d_backward",
    "aten::replication_pad3d_backward",
    "aten::sgn",
});

Variable placed(Variable grad, const Sharding& like) {
  if (!grad.defined() || is_dtensor(grad)) return grad;
  if (grad._is_zerotensor()) grad = at::zeros(grad.sizes(), grad.options());  // has no memory
  const Sharding as = like.with_dtype(static_cast<DType>(grad.scalar_type()));
  return redistribute(wrap_differentiable(grad, as_replicated(grad, as.mesh())), as);
}

struct PlacedGradient : torch::autograd::Function<PlacedGradient> {
  static Variable forward(AutogradContext* ctx, const Variable& tensor) {
    refresh(tensor);  // the result refers to the memory, not to the view that may be out of date
    const ShardedMeta* meta = sharded_meta(tensor);
    ctx->set_materialize_grads(false);
    hold_value(ctx, "grad", gradient_sharding(meta->sharding()));
    return wrap(meta->local(), meta->sharding());
  }
  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    return {placed(grads[0], held_value<Sharding>(ctx, "grad"))};
  }
};

bool gets_gradient(const at::Tensor& tensor) {
  const ShardedMeta* meta = sharded_meta(tensor);
  if (meta == nullptr || meta->lazy() != nullptr) return false;
  return records_uses(tensor) && takes_gradient(tensor);
}

struct PlacingHook final : torch::autograd::FunctionPreHook {
  PlacingHook(Sharding like, size_t index) : as(std::move(like)), output(index) {}
  variable_list operator()(const variable_list& grads) override {
    variable_list out = grads;
    out[output] = placed(out[output], as);
    return out;
  }
  Sharding as;
  size_t output;
};

/// A written tensor must keep its identity: a hook converts the gradient of the value that it has
/// before the write. A leaf cannot be written to.
void place_gradient_so_far(const at::Tensor& written) {
  if (!gets_gradient(written) || written.is_leaf()) return;
  written.grad_fn()->add_tensor_pre_hook(std::make_unique<PlacingHook>(
      gradient_sharding(sharded_meta(written)->sharding()), written.output_nr()));
}

void place_those_passed_over(c10::IValue& list) {
  const auto passed_over = [](const at::Tensor& t) { return t.dim() == 1 && t.numel() == 0; };
  const std::vector<at::Tensor> tensors = list.toTensorVector();
  if (std::ranges::none_of(tensors, passed_over)) return;
  c10::List<at::Tensor> placed;
  for (const at::Tensor& tensor : tensors) {
    placed.push_back(passed_over(tensor) ? with_placed_gradient(tensor) : tensor);
  }
  list = std::move(placed);
}

/// as_strided(self, size, ...) with elements: the result must stay a view of its base. Through a
/// view without elements nothing is written, so there a stand-in for the base suffices.
bool is_view_of_elements(const OpEntry& entry, const Stack& stack) {
  if (!entry.is_view) return false;
  const c10::IValue& size = stack[stack.size() - entry.args.size() + 1];
  return !size.isIntList() || std::ranges::count(size.toIntVector(), 0) == 0;
}

class PlacedGradientKernel final : public c10::OperatorKernel {
 public:
  PlacedGradientKernel(std::shared_ptr<const OpEntry> entry, c10::SafeKernelFunction formulas)
      : entry_(std::move(entry)), formulas_(std::move(formulas)) {}

  void operator()(const c10::OperatorHandle& op, c10::DispatchKeySet keys, Stack* stack) {
    const size_t base = stack->size() - entry_->args.size();
    std::optional<ViewFunctionScope> scope;
    if (entry_->is_view) scope.emplace((*stack)[base].toTensor());
    if (is_view_of_elements(*entry_, *stack)) {
      formulas_.callBoxed(op, keys, stack);
      return scope->record(stack->back());
    }
    for (size_t i = 0; i < entry_->args.size(); ++i) {
      c10::IValue& value = (*stack)[base + i];
      if (value.isTensor() &&
          std::ranges::find(entry_->written, static_cast<int>(i)) != entry_->written.end()) {
        place_gradient_so_far(value.toTensor());
        continue;
      }
      if (value.isTensor()) value = with_placed_gradient(value.toTensor());
      if (value.isTensorList()) place_those_passed_over(value);
    }
    formulas_.callBoxed(op, keys, stack);
  }

 private:
  std::shared_ptr<const OpEntry> entry_;
  c10::SafeKernelFunction formulas_;
};

}  // namespace

at::Tensor with_placed_gradient(const at::Tensor& tensor) {
  return gets_gradient(tensor) ? PlacedGradient::apply(tensor) : tensor;
}

bool is_placing_hook(const torch::autograd::FunctionPreHook& hook) {
  return typeid(hook) == typeid(PlacingHook);
}

bool makes_plain_gradients(const c10::OperatorName& name) {
  std::string_view op = name.name;
  if (op.ends_with('_')) op.remove_suffix(1);  // copysign_
  return std::ranges::binary_search(kOps, op) && !name.overload_name.ends_with("out") &&
         name.overload_name != "grad_input";
}

c10::KernelFunction placed_gradient_kernel(std::shared_ptr<const OpEntry> entry,
                                           const c10::OperatorHandle& op) {
  return c10::KernelFunction::makeFromBoxedFunctor(std::make_unique<PlacedGradientKernel>(
      std::move(entry), op.getComputedKernelForDispatchKey(c10::DispatchKey::AutogradPrivateUse3)));
}

}  // namespace tessera::dtensor
