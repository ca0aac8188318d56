// Pooling of spatially sharded tensors: each rank pools a window of the input, its part plus a
// halo, so that the output is sharded in the same dim. If windows end with the parts, nothing is
// sent. Other pooling, and adaptive pooling, is handled by the rules.
#include <ATen/TensorOperators.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>

#include "tessera/dtensor/dispatch/dispatch.h"
#include "tessera/dtensor/dispatch/register.h"
#include "tessera/dtensor/layout.h"
#include "tessera/dtensor/ops/halo_exchange.h"
#include "tessera/dtensor/ops/install.h"
#include "tessera/dtensor/ops/moved_operands.h"
#include "tessera/dtensor/ops/pooling_layout.h"
#include "tessera/observe/call_site.h"

namespace tessera::dtensor {
namespace {

/// The layout of the call, if this handler takes it: an input sharded in a spatial dim, valid
/// arguments, all on one mesh. Otherwise the common path runs and reports errors.
std::optional<PoolingLayout> pooling_of(const OpEntry& entry, const Stack& stack,
                                        const at::Tensor& input, PoolingArgs args) {
  const ShardedMeta* meta = sharded_meta(input);
  const int dims = args.dims();
  if (meta == nullptr || !input.is_floating_point() || input.numel() == 0) return std::nullopt;
  if (input.dim() != dims + 1 && input.dim() != dims + 2) return std::nullopt;
  const int first = static_cast<int>(input.dim()) - dims;
  if (!args.are_valid(input.sizes().slice(static_cast<size_t>(first)))) return std::nullopt;
  const Sharding& lies = meta->sharding();
  bool ours = false;
  for (const Placement& p : lies.placements()) {
    if (p.is_partial()) return std::nullopt;
    if (!p.is_sharded() || p.dim() < first) continue;
    ours = true;
    const auto d = static_cast<size_t>(p.dim() - first);
    // The first position inside of the tensor in the kernel's window is then not the nearest one.
    if (args.dilation[d] > 1 && args.padding[d] > 0) return std::nullopt;
  }
  if (!ours || !all_on(lies.mesh(), entry, stack)) return std::nullopt;
  const auto format =
      input.dim() == dims + 2 ? input.suggest_memory_format() : at::MemoryFormat::Contiguous;
  return PoolingLayout(lies, std::move(args), format);
}

template <class... Values>
Stack run(const c10::OperatorHandle& op, Values&&... values) {
  Stack stack;
  torch::jit::push(stack, std::forward<Values>(values)...);
  op.callBoxed(&stack);
  return stack;
}

/// A forward op, whose first argument is the input: `pool` computes results of these dtypes from
/// the input window of this rank's part of the output.
template <class Pool>
bool pooled(const OpEntry& entry, Stack& stack, const PoolingArgs& pooling,
            std::initializer_list<at::ScalarType> types, const Pool& pool) {
  const at::Tensor input = torch::jit::peek(stack, 0, entry.args.size()).toTensor();
  const auto call = pooling_of(entry, stack, input, pooling);
  if (!call) return false;
  const MovedOperands operands(entry, stack, {call->input()});
  at::Tensor window;
  {
    const comm::CallSite site({.op = entry.name});
    window = call->exchange().gather(operands.local(0));
  }
  std::vector<at::Tensor> made;
  if (call->makes_nothing()) {
    for (const at::ScalarType type : types) {
      made.push_back(
          at::empty(as_ints(call->output().local_shape()), window.options().dtype(type)));
    }
  } else {
    for (const at::Tensor& result : pool(*call, window)) made.push_back(call->lay(result));
  }
  torch::jit::drop(stack, entry.args.size());
  for (const at::Tensor& result : made) {
    const auto type = static_cast<DType>(result.scalar_type());
    torch::jit::push(stack, wrap(result, call->output().with_dtype(type)));
  }
  return true;
}

/// A backward op, whose first arguments are the gradient and the input: `pool` computes the
/// gradient of the window from that of this rank's part of the output and a window of zeros.
/// Further tensors among the arguments, which have the dtypes `others` and the output's sharding,
/// are passed as well.
template <class Pool>
bool pooled_backward(const OpEntry& entry, Stack& stack, const PoolingArgs& pooling,
                     std::initializer_list<DType> others, const Pool& pool) {
  const at::Tensor input = torch::jit::peek(stack, 1, entry.args.size()).toTensor();
  const auto call = pooling_of(entry, stack, input, pooling);
  if (!call) return false;
  std::vector<Sharding> lie = {call->output(), call->input()};
  for (const DType type : others) lie.push_back(call->output().with_dtype(type));
  const MovedOperands operands(entry, stack, lie);
  const at::Tensor grad = operands.local(0);
  std::vector<at::Tensor> beside;
  for (size_t i = 2; i < lie.size(); ++i) beside.push_back(operands.local(i));
  const HaloExchange exchange = call->exchange();
  at::Tensor window = at::zeros(exchange.window_shape(), grad.options());
  if (!call->makes_nothing()) window = pool(*call, grad, window, beside);
  const comm::CallSite site({.op = entry.name});
  torch::jit::drop(stack, entry.args.size());
  torch::jit::push(stack, wrap(exchange.scatter_sum(window), call->input()));
  return true;
}

/// max_pool_with_indices(self, kernel_size, stride, padding, dilation, ceil_mode)
template <int kDims>
bool max_pool(const OpEntry& entry, const c10::OperatorHandle& op, Stack& stack) {
  const auto args = torch::jit::last(stack, entry.args.size());
  const PoolingArgs pooling(kDims, args.slice(1, 4), args[5].toBool());
  const auto pool = [&](const PoolingLayout& call, at::Tensor window) {
    call.fill_outside(window);
    const Stack made = run(op, window, pooling.kernel, pooling.stride, call.local_padding(),
                           pooling.dilation, pooling.ceil_mode);
    return std::vector{made[0].toTensor(),
                       call.places_in_tensor(made[1].toTensor(), window.sizes())};
  };
  return pooled(entry, stack, pooling, {args[0].toTensor().scalar_type(), at::kLong}, pool);
}

/// max_pool_with_indices_backward(grad, self, kernel_size, stride, padding, dilation, ceil_mode,
/// indices), with the indices of the forward, each converted to its window.
template <int kDims>
bool max_pool_backward(const OpEntry& entry, const c10::OperatorHandle& op, Stack& stack) {
  const auto args = torch::jit::last(stack, entry.args.size());
  const PoolingArgs pooling(kDims, args.slice(2, 4), args[6].toBool());
  const auto pool = [&](const PoolingLayout& call, const at::Tensor& grad, const at::Tensor& window,
                        const std::vector<at::Tensor>& indices) {
    const at::Tensor places = call.places_in_window(indices[0], window.sizes());
    return run(op, grad, window, pooling.kernel, pooling.stride, call.local_padding(),
               pooling.dilation, pooling.ceil_mode, places)[0]
        .toTensor();
  };
  return pooled_backward(entry, stack, pooling, {DType::i64}, pool);
}

/// The divisor of averages: one number that the kernel applies, or one per output, in which case
/// the kernel only sums.
struct Divisor {
  int64_t number = 1;
  at::Tensor each;

  Divisor(const PoolingLayout& call, const c10::IValue& given, bool count_padding,
          const at::TensorOptions& options) {
    if (!given.isNone()) {
      number = given.toInt();
      return;
    }
    const at::Tensor all = call.divisor(count_padding);
    if (all.numel() == 1) {
      number = static_cast<int64_t>(all.item<double>());
    } else {
      each = all.to(options);
    }
  }
};

/// float16 and bfloat16 are accumulated in float32.
at::TensorOptions wide(const at::TensorOptions& options) {
  return at::isReducedFloatingType(c10::typeMetaToScalarType(options.dtype()))
             ? options.dtype(at::kFloat)
             : options;
}

/// avg_pool(self, kernel_size, stride, padding, ceil_mode, count_include_pad, divisor_override)
template <int kDims>
bool avg_pool(const OpEntry& entry, const c10::OperatorHandle& op, Stack& stack) {
  const auto args = torch::jit::last(stack, entry.args.size());
  const PoolingArgs pooling(kDims, args.slice(1, 3), args[4].toBool());
  const bool count_padding = args[5].toBool();
  const auto pool = [&](const PoolingLayout& call, const at::Tensor& window) {
    const at::TensorOptions options = window.options();
    const Divisor divisor(call, args[6], count_padding, wide(options));
    const at::Tensor addends = divisor.each.defined() ? window.to(wide(options)) : window;
    at::Tensor out = run(op, addends, pooling.kernel, pooling.stride, call.local_padding(),
                         pooling.ceil_mode, count_padding, divisor.number)[0]
                         .toTensor();
    if (divisor.each.defined()) out = out.div_(divisor.each).to(options);
    return std::vector{out};
  };
  return pooled(entry, stack, pooling, {args[0].toTensor().scalar_type()}, pool);
}

/// avg_pool_backward(grad, self, kernel_size, stride, padding, ceil_mode, count_include_pad,
/// divisor_override)
template <int kDims>
bool avg_pool_backward(const OpEntry& entry, const c10::OperatorHandle& op, Stack& stack) {
  const auto args = torch::jit::last(stack, entry.args.size());
  const PoolingArgs pooling(kDims, args.slice(2, 3), args[5].toBool());
  const bool count_padding = args[6].toBool();
  const auto pool = [&](const PoolingLayout& call, const at::Tensor& grad, const at::Tensor& window,
                        const std::vector<at::Tensor>&) {
    const Divisor divisor(call, args[7], count_padding, grad.options());
    return run(op, divisor.each.defined() ? grad / divisor.each : grad, window, pooling.kernel,
               pooling.stride, call.local_padding(), pooling.ceil_mode, count_padding,
               divisor.number)[0]
        .toTensor();
  };
  return pooled_backward(entry, stack, pooling, {}, pool);
}

}  // namespace

void install_pooling() {
  set_decomposition("aten::max_pool2d_with_indices", max_pool<2>);
  set_decomposition("aten::max_pool3d_with_indices", max_pool<3>);
  set_decomposition("aten::max_pool2d_with_indices_backward", max_pool_backward<2>);
  set_decomposition("aten::max_pool3d_with_indices_backward", max_pool_backward<3>);
  set_decomposition("aten::avg_pool2d", avg_pool<2>);
  set_decomposition("aten::avg_pool3d", avg_pool<3>);
  set_decomposition("aten::avg_pool2d_backward", avg_pool_backward<2>);
  set_decomposition("aten::avg_pool3d_backward", avg_pool_backward<3>);
}

}  // namespace tessera::dtensor
