#include <ATen/ops/_foreach_add_ops.h>
#include <ATen/ops/_foreach_lerp_ops.h>
#include <ATen/ops/_foreach_mul_ops.h>
#include <ATen/ops/_fused_adam_ops.h>
#include <ATen/ops/_fused_adamw_ops.h>
#include <ATen/ops/_log_softmax_backward_data_ops.h>
#include <ATen/ops/_log_softmax_ops.h>
#include <ATen/ops/_softmax_backward_data_ops.h>
#include <ATen/ops/_softmax_ops.h>
#include <ATen/ops/_unsafe_view_ops.h>
#include <ATen/ops/abs_ops.h>
#include <ATen/ops/add_ops.h>
#include <ATen/ops/addcdiv_ops.h>
#include <ATen/ops/addcmul_ops.h>
#include <ATen/ops/addmm_ops.h>
#include <ATen/ops/alias_ops.h>
#include <ATen/ops/bmm_ops.h>
#include <ATen/ops/clone_ops.h>
#include <ATen/ops/cos_ops.h>
#include <ATen/ops/detach_ops.h>
#include <ATen/ops/div_ops.h>
#include <ATen/ops/embedding_dense_backward_ops.h>
#include <ATen/ops/embedding_ops.h>
#include <ATen/ops/exp_ops.h>
#include <ATen/ops/expand_ops.h>
#include <ATen/ops/gelu_backward_ops.h>
#include <ATen/ops/gelu_ops.h>
#include <ATen/ops/linear_backward_ops.h>
#include <ATen/ops/linear_ops.h>
#include <ATen/ops/log_ops.h>
#include <ATen/ops/maximum_ops.h>
#include <ATen/ops/mean_ops.h>
#include <ATen/ops/minimum_ops.h>
#include <ATen/ops/mm_ops.h>
#include <ATen/ops/mul_ops.h>
#include <ATen/ops/native_layer_norm_backward_ops.h>
#include <ATen/ops/native_layer_norm_ops.h>
#include <ATen/ops/neg_ops.h>
#include <ATen/ops/permute_ops.h>
#include <ATen/ops/pow_ops.h>
#include <ATen/ops/relu_ops.h>
#include <ATen/ops/rsqrt_ops.h>
#include <ATen/ops/select_ops.h>
#include <ATen/ops/sigmoid_backward_ops.h>
#include <ATen/ops/sigmoid_ops.h>
#include <ATen/ops/silu_backward_ops.h>
#include <ATen/ops/silu_ops.h>
#include <ATen/ops/sin_ops.h>
#include <ATen/ops/slice_ops.h>
#include <ATen/ops/sqrt_ops.h>
#include <ATen/ops/squeeze_ops.h>
#include <ATen/ops/stack_ops.h>
#include <ATen/ops/sub_ops.h>
#include <ATen/ops/sum_ops.h>
#include <ATen/ops/t_ops.h>
#include <ATen/ops/tanh_backward_ops.h>
#include <ATen/ops/tanh_ops.h>
#include <ATen/ops/threshold_backward_ops.h>
#include <ATen/ops/transpose_ops.h>
#include <ATen/ops/unbind_ops.h>
#include <ATen/ops/unsqueeze_ops.h>
#include <ATen/ops/view_ops.h>
#include <ATen/ops/where_ops.h>
#include <ATen/ops/zero_ops.h>

#include <algorithm>
#include <array>

#include "tessera/dtensor/kernels/typed_kernel.h"

namespace tessera::dtensor {
namespace {

struct Typed {
  std::string_view name;
  std::string_view overload;
  c10::KernelFunction (*make)(std::shared_ptr<const OpEntry> entry, const c10::OperatorHandle& op,
                              c10::KernelFunction boxed);
};

template <class Op>
c10::KernelFunction make(std::shared_ptr<const OpEntry> entry, const c10::OperatorHandle& op,
                         c10::KernelFunction boxed) {
  using Kernel = TypedKernel<typename Op::schema>;
  return c10::KernelFunction::makeFromUnboxedFunctor<false, Kernel>(
      std::make_unique<Kernel>(std::move(entry), op, std::move(boxed), Op::call));
}

template <class... Ops>
constexpr std::array<Typed, sizeof...(Ops)> typed() {
  return {Typed{Ops::name, Ops::overload_name, make<Ops>}...};
}

/// The ops called most by training and inference of transformers, and by optimizers.
constexpr auto kTyped =
    typed<at::_ops::abs, at::_ops::add_Tensor, at::_ops::add__Tensor, at::_ops::addcdiv_,
          at::_ops::addcmul_, at::_ops::addmm, at::_ops::alias, at::_ops::bmm, at::_ops::clone,
          at::_ops::cos, at::_ops::detach, at::_ops::div_Scalar, at::_ops::div_Tensor,
          at::_ops::embedding, at::_ops::embedding_dense_backward, at::_ops::exp, at::_ops::expand,
          at::_ops::_foreach_add__List, at::_ops::_foreach_add__Scalar,
          at::_ops::_foreach_lerp__Scalar, at::_ops::_foreach_mul__Scalar, at::_ops::_fused_adam_,
          at::_ops::_fused_adamw_, at::_ops::gelu, at::_ops::gelu_backward, at::_ops::linear,
          at::_ops::linear_backward, at::_ops::log, at::_ops::_log_softmax,
          at::_ops::_log_softmax_backward_data, at::_ops::maximum, at::_ops::mean_dim,
          at::_ops::minimum, at::_ops::mm, at::_ops::mul_Scalar, at::_ops::mul_Tensor,
          at::_ops::mul__Scalar, at::_ops::mul__Tensor, at::_ops::native_layer_norm,
          at::_ops::native_layer_norm_backward, at::_ops::neg, at::_ops::permute,
          at::_ops::pow_Tensor_Scalar, at::_ops::relu, at::_ops::rsqrt, at::_ops::select_int,
          at::_ops::sigmoid, at::_ops::sigmoid_backward, at::_ops::silu, at::_ops::silu_backward,
          at::_ops::sin, at::_ops::slice_Tensor, at::_ops::_softmax,
          at::_ops::_softmax_backward_data, at::_ops::sqrt, at::_ops::squeeze_dim, at::_ops::stack,
          at::_ops::sub_Tensor, at::_ops::sum, at::_ops::sum_dim_IntList, at::_ops::t,
          at::_ops::tanh, at::_ops::tanh_backward, at::_ops::threshold_backward,
          at::_ops::transpose_int, at::_ops::unbind_int, at::_ops::_unsafe_view,
          at::_ops::unsqueeze, at::_ops::view, at::_ops::where_self, at::_ops::zero_>();

}  // namespace

c10::KernelFunction typed_or_boxed(std::shared_ptr<const OpEntry> entry,
                                   const c10::OperatorHandle& op, c10::KernelFunction boxed) {
  const auto& name = op.operator_name();
  const auto found = std::ranges::find_if(kTyped, [&](const Typed& typed) {
    return typed.name == name.name && typed.overload == name.overload_name;
  });
  if (found == kTyped.end()) return boxed;
  return found->make(std::move(entry), op, std::move(boxed));
}

}  // namespace tessera::dtensor
