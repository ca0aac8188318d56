#include "tessera/parallel/context/attention_kernel.h"

#include <ATen/ops/_scaled_dot_product_cudnn_attention.h>
#include <ATen/ops/_scaled_dot_product_cudnn_attention_backward.h>
#include <ATen/ops/_scaled_dot_product_efficient_attention.h>
#include <ATen/ops/_scaled_dot_product_efficient_attention_backward.h>
#include <ATen/ops/_scaled_dot_product_flash_attention.h>
#include <ATen/ops/_scaled_dot_product_flash_attention_backward.h>
#include <ATen/ops/_scaled_dot_product_flash_attention_for_cpu.h>
#include <ATen/ops/_scaled_dot_product_flash_attention_for_cpu_backward.h>
#include <ATen/ops/constant_pad_nd.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <array>
#include <limits>
#include <utility>

#include "tessera/base/errors.h"
#include "tessera/parallel/context/attention_math.h"

namespace tessera {
namespace {

constexpr auto kKernelNames = std::to_array<std::pair<AttentionKernel, std::string_view>>({
    {AttentionKernel::automatic, "automatic"},
    {AttentionKernel::cpu_flash, "cpu_flash"},
    {AttentionKernel::flash, "flash"},
    {AttentionKernel::efficient, "efficient"},
    {AttentionKernel::cudnn, "cudnn"},
    {AttentionKernel::math, "math"},
});

}  // namespace

std::string_view attention_kernel_name(AttentionKernel kernel) {
  return kKernelNames[static_cast<size_t>(kernel)].second;
}

AttentionKernel attention_kernel_from_name(std::string_view name) {
  for (const auto& [kernel, text] : kKernelNames) {
    if (text == name) return kernel;
  }
  throw InvalidArgument(join_text("no attention kernel '", name,
                                  "'; there are automatic, cpu_flash, flash, efficient, cudnn, "
                                  "math"));
}

namespace parallel {
namespace {

constexpr double kNoDropout = 0.0;
/// Widths that CUDA's kernels take are multiples of 8.
constexpr int64_t kWidthMultiple = 8;
/// The memory-efficient kernel pads the rows of its log-sum-exp, and wants masks whose rows start
/// at multiples of 16 elements.
constexpr int64_t kLogSumExpMultiple = 32;
constexpr int64_t kMaskMultiple = 16;

bool is_half(const at::Tensor& t) {
  return t.scalar_type() == at::kHalf || t.scalar_type() == at::kBFloat16;
}

int64_t round_up(int64_t n, int64_t multiple) { return (n + multiple - 1) / multiple * multiple; }

at::Tensor pad_last(const at::Tensor& t, int64_t to, double value = 0) {
  return t.size(-1) == to ? t : at::constant_pad_nd(t, {0, to - t.size(-1)}, value);
}

at::Tensor dense_rows(const at::Tensor& t) { return t.stride(-1) == 1 ? t : t.contiguous(); }

/// Heads of keys repeated for the queries that share them.
at::Tensor repeat_heads(const at::Tensor& kv, int64_t heads) {
  const int64_t group = heads / kv.size(1);
  if (group == 1) return kv;
  return kv.unsqueeze(2)
      .expand({kv.size(0), kv.size(1), group, kv.size(2), kv.size(3)})
      .reshape({kv.size(0), heads, kv.size(2), kv.size(3)});
}

at::Tensor sum_heads(const at::Tensor& grad, int64_t heads) {
  if (grad.size(1) == heads) return grad;
  return grad.reshape({grad.size(0), heads, grad.size(1) / heads, grad.size(2), grad.size(3)})
      .sum(2);
}

/// What a kernel takes: equal widths of keys and values, dense rows, its own form of the mask.
struct Prepared {
  at::Tensor query, key, value;
  std::optional<at::Tensor> mask;
};

bool shares_heads(AttentionKernel kernel) {
  return kernel == AttentionKernel::cpu_flash || kernel == AttentionKernel::flash ||
         kernel == AttentionKernel::cudnn;
}

int64_t kernel_width(AttentionKernel kernel, const KernelInputs& in) {
  const int64_t width = std::max(in.query.size(3), in.value.size(3));
  return kernel == AttentionKernel::cpu_flash ? width : round_up(width, kWidthMultiple);
}

Prepared prepare(AttentionKernel kernel, const KernelInputs& in) {
  const int64_t width = kernel_width(kernel, in);
  Prepared out{dense_rows(pad_last(in.query, width)), dense_rows(pad_last(in.key, width)),
               dense_rows(pad_last(in.value, width)), in.mask};
  if (!shares_heads(kernel)) {
    out.key = repeat_heads(out.key, in.query.size(1));
    out.value = repeat_heads(out.value, in.query.size(1));
  }
  if (!in.mask || kernel == AttentionKernel::cpu_flash) return out;
  const std::array<int64_t, 4> shape = {in.query.size(0), in.query.size(1), in.query.size(2),
                                        in.key.size(2)};
  const at::Tensor padded = pad_last(
      in.mask->expand({in.mask->size(0), in.mask->size(1), in.mask->size(2), in.key.size(2)}),
      round_up(in.key.size(2), kMaskMultiple));
  out.mask = padded.narrow(-1, 0, in.key.size(2)).expand(shape);
  return out;
}

at::Tensor no_seed(const at::Tensor& like) {
  return at::zeros({}, at::TensorOptions(like.device()).dtype(at::kLong));
}

KernelOutputs run_forward(AttentionKernel kernel, const KernelInputs& in, const Prepared& p) {
  if (kernel == AttentionKernel::cpu_flash) {
    auto [out, lse] = at::_scaled_dot_product_flash_attention_for_cpu(
        p.query, p.key, p.value, kNoDropout, in.causal, p.mask, in.scale);
    return {out, lse};
  }
  if (kernel == AttentionKernel::flash) {
    auto result = at::_scaled_dot_product_flash_attention(p.query, p.key, p.value, kNoDropout,
                                                          in.causal, false, in.scale);
    return {std::get<0>(result), std::get<1>(result)};
  }
  if (kernel == AttentionKernel::efficient) {
    auto result = at::_scaled_dot_product_efficient_attention(p.query, p.key, p.value, p.mask,
                                                              /*compute_log_sumexp=*/true,
                                                              kNoDropout, in.causal, in.scale);
    return {std::get<0>(result), std::get<1>(result).narrow(2, 0, in.query.size(2))};
  }
  auto result = at::_scaled_dot_product_cudnn_attention(p.query, p.key, p.value, p.mask,
                                                        /*compute_log_sumexp=*/true, kNoDropout,
                                                        in.causal, false, in.scale);
  const at::Tensor lse = std::get<1>(result);
  return {std::get<0>(result), lse.dim() == 4 ? lse.squeeze(-1) : lse};
}

using Three = std::tuple<at::Tensor, at::Tensor, at::Tensor>;

Three run_backward(AttentionKernel kernel, const KernelInputs& in, const Prepared& p,
                   const at::Tensor& grad, const at::Tensor& out, const at::Tensor& lse) {
  const int64_t rows = in.query.size(2);
  const int64_t keys = in.key.size(2);
  if (kernel == AttentionKernel::cpu_flash) {
    return at::_scaled_dot_product_flash_attention_for_cpu_backward(
        grad, p.query, p.key, p.value, out, lse, kNoDropout, in.causal, p.mask, in.scale);
  }
  if (kernel == AttentionKernel::flash) {
    // The random state is read if there is dropout; the kernel takes its address always.
    const at::Tensor state =
        at::zeros({2}, at::TensorOptions(grad.device()).dtype(at::kLong)).view(at::kUInt64);
    return at::_scaled_dot_product_flash_attention_backward(
        grad, p.query, p.key, p.value, out, lse.contiguous(), {}, {}, rows, keys, kNoDropout,
        in.causal, state, state, in.scale);
  }
  if (kernel == AttentionKernel::efficient) {
    const at::Tensor padded =
        pad_last(lse, round_up(rows, kLogSumExpMultiple), std::numeric_limits<double>::infinity());
    auto result = at::_scaled_dot_product_efficient_attention_backward(
        grad, p.query, p.key, p.value, p.mask.value_or(at::Tensor()), out, padded.contiguous(),
        no_seed(grad), no_seed(grad), kNoDropout, {true, true, true, false}, in.causal, in.scale);
    return {std::get<0>(result), std::get<1>(result), std::get<2>(result)};
  }
  return at::_scaled_dot_product_cudnn_attention_backward(
      grad, p.query, p.key, p.value, out, lse.unsqueeze(-1).contiguous(), no_seed(grad),
      no_seed(grad), p.mask.value_or(at::Tensor()), {}, {}, rows, keys, kNoDropout, in.causal,
      in.scale);
}

}  // namespace

AttentionKernel choose_kernel(AttentionKernel asked, const at::Tensor& query, bool masked) {
  const bool cuda = query.device().type() == c10::kCUDA;
  const bool cpu = query.device().type() == c10::kCPU;
  const auto dtype = query.scalar_type();
  if (asked == AttentionKernel::automatic) {
    if (cpu) return AttentionKernel::cpu_flash;
    if (!cuda || dtype == at::kDouble) return AttentionKernel::math;
    if (!is_half(query)) return AttentionKernel::efficient;
    return masked ? AttentionKernel::math : AttentionKernel::flash;
  }
  // The backward of the memory-efficient kernel gives NaN for a block of keys in half precision.
  const bool fits = asked == AttentionKernel::math ||
                    (asked == AttentionKernel::cpu_flash && cpu) ||
                    (asked == AttentionKernel::efficient && cuda && dtype == at::kFloat) ||
                    (asked == AttentionKernel::cudnn && cuda && is_half(query)) ||
                    (asked == AttentionKernel::flash && cuda && is_half(query) && !masked);
  if (!fits) {
    throw NotSupported(join_text("the attention kernel ", attention_kernel_name(asked),
                                 " does not take ", c10::toString(dtype), " on ",
                                 c10::DeviceTypeName(query.device().type(), true),
                                 masked ? " with a mask" : "", "; use automatic or math"));
  }
  return asked;
}

KernelOutputs attend(AttentionKernel kernel, const KernelInputs& in) {
  if (kernel == AttentionKernel::math) return attend_math(in);
  KernelOutputs result = run_forward(kernel, in, prepare(kernel, in));
  result.out = result.out.narrow(-1, 0, in.value.size(3));
  if (in.mask) {
    // Kernels disagree about the log-sum-exp of a row whose keys are all masked.
    const at::Tensor none = in.mask->amax(-1).eq(-std::numeric_limits<double>::infinity());
    result.log_sum_exp =
        result.log_sum_exp.masked_fill(none, -std::numeric_limits<double>::infinity());
    result.out = result.out.masked_fill(none.unsqueeze(-1), 0);
  }
  return result;
}

KernelGradients attend_backward(AttentionKernel kernel, const KernelInputs& in,
                                const at::Tensor& grad_out, const at::Tensor& out,
                                const at::Tensor& log_sum_exp) {
  if (kernel == AttentionKernel::math) {
    return attend_math_backward(in, grad_out, out, log_sum_exp);
  }
  const int64_t width = kernel_width(kernel, in);
  auto [query, key, value] =
      run_backward(kernel, in, prepare(kernel, in), dense_rows(pad_last(grad_out, width)),
                   dense_rows(pad_last(out, width)), log_sum_exp);
  return {query.narrow(-1, 0, in.query.size(3)),
          sum_heads(key, in.key.size(1)).narrow(-1, 0, in.key.size(3)),
          sum_heads(value, in.value.size(1)).narrow(-1, 0, in.value.size(3))};
}

}  // namespace parallel
}  // namespace tessera
