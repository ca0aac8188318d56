#include "tessera/dtensor/kernels/linear_gradient.h"

#include <ATen/FuncTorchTLS.h>
#include <ATen/TensorUtils.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/stack.h>
#include <ATen/ops/linear_backward.h>
#include <ATen/ops/zeros.h>
#include <torch/csrc/autograd/custom_function.h>

#include <memory>
#include <optional>
#include <utility>

#include "tessera/dtensor/autograd.h"
#include "tessera/dtensor/tensor/layout.h"
#include "tessera/dtensor/tensor/sharded_tensor.h"

namespace tessera::dtensor {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::Variable;
using torch::autograd::variable_list;
using torch::jit::Stack;

/// A tensor of the same sharding that keeps no memory: backward takes its shape alone.
at::Tensor shape_of(const at::Tensor& tensor) {
  const ShardedMeta* meta = sharded_meta(tensor);
  const Sharding& as = meta->sharding();
  const at::Tensor zero = at::zeros({}, meta->local().options());
  return wrap(zero.expand(meta->local().sizes()),
              as.with_shape({as.shape().begin(), as.shape().end()}));
}

at::Tensor linear_below_autograd(const c10::OperatorHandle& op, const at::Tensor& input,
                                 const at::Tensor& weight, const std::optional<at::Tensor>& bias) {
  const at::AutoDispatchBelowADInplaceOrView below_autograd;
  Stack stack = {input, weight, bias};
  op.redispatchBoxed(c10::DispatchKeySet(kKey), &stack);
  return stack.front().toTensor();
}

struct LinearOfOne : torch::autograd::Function<LinearOfOne> {
  static Variable forward(AutogradContext* ctx, const c10::OperatorHandle& op,
                          const Variable& input, const Variable& weight,
                          const std::optional<Variable>& bias, bool for_weight) {
    ctx->set_materialize_grads(false);
    ctx->save_for_backward({for_weight ? input : weight});
    ctx->saved_data["other"] = shape_of(for_weight ? weight : input);
    ctx->saved_data["for_weight"] = for_weight;
    ctx->saved_data["for_bias"] = bias && bias->defined() && bias->requires_grad();
    return linear_below_autograd(op, input, weight, bias);
  }
  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    if (!grads[0].defined()) return variable_list(kInputs);
    const Variable saved = ctx->get_saved_variables()[0];
    const Variable other = ctx->saved_data["other"].toTensor();
    const bool for_weight = ctx->saved_data["for_weight"].toBool();
    const bool for_bias = ctx->saved_data["for_bias"].toBool();
    auto [d_input, d_weight, d_bias] =
        at::linear_backward(for_weight ? saved : other, grads[0], for_weight ? other : saved,
                            {!for_weight, for_weight, for_bias});
    return {Variable(), d_input, d_weight, d_bias, Variable()};
  }
  static constexpr size_t kInputs = 5;
};

/// C++ functions take no part in transforms of functions (torch.func).
bool is_in_transform() {
  const auto& transforms = at::functorch::functorchTLSAccessor();
  if (transforms == nullptr) return false;
  try {
    transforms->checkSupportsCppAutogradFunction();
    return false;
  } catch (const c10::Error&) {
    return true;
  }
}

bool has_its_value(const at::Tensor& tensor) {
  const ShardedMeta* meta = sharded_meta(tensor);
  return meta != nullptr && meta->lazy() == nullptr;
}

/// Whether a view has the leading dims as one. libtorch multiplies such a view; of other inputs it
/// makes a copy, which the derivative by the weight saves, so that the input may be written to.
bool folds(const at::Tensor& input) {
  if (input.dim() < 3 || input.numel() == 0) return true;
  const int64_t columns = input.size(-1);
  return at::detail::computeStride(input.sizes(), input.strides(),
                                   at::IntArrayRef({input.numel() / columns, columns}))
      .has_value();
}

class LinearGradientKernel final : public c10::OperatorKernel {
 public:
  explicit LinearGradientKernel(c10::SafeKernelFunction formula) : formula_(std::move(formula)) {}

  void operator()(const c10::OperatorHandle& op, c10::DispatchKeySet keys, Stack* stack) {
    const at::Tensor& weight = torch::jit::peek(*stack, 1, 3).toTensor();
    c10::IValue& given = torch::jit::peek(*stack, 0, 3);
    if (c10::GradMode::is_enabled() && weight.requires_grad() && has_its_value(given.toTensor()) &&
        !folds(given.toTensor())) {
      given = given.toTensor().contiguous();
    }
    const at::Tensor& input = given.toTensor();
    const bool is_recorded =
        c10::GradMode::is_enabled() && has_its_value(input) && has_its_value(weight);
    const bool for_weight = is_recorded && takes_gradient(weight);
    const bool is_of_one = is_recorded && takes_gradient(input) != for_weight;
    if (!is_of_one || is_in_transform()) return formula_.callBoxed(op, keys, stack);
    const auto bias = torch::jit::peek(*stack, 2, 3).toOptional<at::Tensor>();
    at::Tensor result = LinearOfOne::apply(op, input, weight, bias, for_weight);
    torch::jit::drop(*stack, 3);
    torch::jit::push(*stack, std::move(result));
  }

 private:
  c10::SafeKernelFunction formula_;
};

}  // namespace

c10::KernelFunction linear_gradient_kernel(const c10::OperatorHandle& op) {
  return c10::KernelFunction::makeFromBoxedFunctor(std::make_unique<LinearGradientKernel>(
      op.getComputedKernelForDispatchKey(c10::DispatchKey::AutogradPrivateUse3)));
}

}  // namespace tessera::dtensor
