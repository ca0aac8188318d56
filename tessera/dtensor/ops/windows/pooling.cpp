// Pooling of spatially sharded tensors: each rank pools a window of the input, its part plus a
// halo, so that the output is sharded in the same dim. If windows end with the parts, nothing is
// sent. Adaptive pooling has no such rows.
#include <ATen/TensorOperators.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>

#include "tessera/dtensor/dispatch/decide/row_kernel.h"
#include "tessera/dtensor/kernels/register.h"
#include "tessera/dtensor/ops/install.h"
#include "tessera/dtensor/ops/sharded_dim_rows.h"
#include "tessera/dtensor/ops/windows/halo_exchange.h"
#include "tessera/dtensor/ops/windows/pooling_layout.h"
#include "tessera/dtensor/output_stride.h"
#include "tessera/dtensor/tensor/layout.h"
#include "tessera/dtensor/tensor/sharded_tensor.h"

namespace tessera::dtensor {
namespace {

template <class... Values>
torch::jit::Stack run(const c10::OperatorHandle& op, Values&&... values) {
  torch::jit::Stack stack;
  torch::jit::push(stack, std::forward<Values>(values)...);
  op.callBoxed(&stack);
  return stack;
}

bool is_backward(std::string_view op) { return op.find("_backward") != std::string_view::npos; }

/// The arguments that all pooling ops name alike; max_pool has a dilation. `ints` returns the list
/// of a name.
template <class Ints>
PoolingArgs read_pooling(std::string_view op, bool ceil, const Ints& ints) {
  return {op.find("pool3d") != std::string_view::npos ? 3 : 2,
          ints("kernel_size"),
          ints("stride"),
          ints("padding"),
          ints("dilation"),
          ceil};
}

PoolingArgs pooling_of(const KernelCall& call) {
  return read_pooling(call.name, call.arg("ceil_mode").toBool(), [&](std::string_view name) {
    const c10::IValue list = call.arg(name);
    return list.isNone() ? std::vector<int64_t>() : list.toIntVector();
  });
}

/// A forward op: `pool` computes the results from the input window of this rank's part of the
/// output.
template <class Pool>
void pooled(const KernelCall& call, const Pool& pool) {
  const PoolingLayout layout(call.operands[0], call.results[0], pooling_of(call));
  const at::Tensor window = layout.exchange().gather(call.args()[0].toTensor());
  std::vector<at::Tensor> made;
  if (layout.makes_nothing()) {
    for (const Sharding& result : call.results) {
      const auto type = static_cast<at::ScalarType>(result.dtype());
      made.push_back(at::empty(as_ints(result.local_shape()), window.options().dtype(type)));
    }
  } else {
    made = pool(layout, window);
  }
  call.give();
  for (size_t r = 0; r < made.size(); ++r) {
    call.stack.emplace_back(strided_as(made[r], call.results[r]));
  }
}

/// A backward op, whose first arguments are the gradient and the input: `pool` computes the
/// gradient of the window from that of this rank's part of the output and a window of zeros.
template <class Pool>
void pooled_backward(const KernelCall& call, const Pool& pool) {
  const PoolingLayout layout(call.operands[1], call.operands[0], pooling_of(call));
  const at::Tensor grad = call.args()[0].toTensor();
  const HaloExchange exchange = layout.exchange();
  at::Tensor window = at::zeros(exchange.window_shape(), grad.options());
  if (!layout.makes_nothing()) window = pool(layout, grad, window);
  call.give(exchange.scatter_sum(window));
}

/// max_pool_with_indices(self, kernel_size, stride, padding, dilation, ceil_mode)
void max_pool(const KernelCall& call) {
  const PoolingArgs pooling = pooling_of(call);
  pooled(call, [&](const PoolingLayout& layout, at::Tensor window) {
    layout.fill_outside(window);
    const auto made = run(call.op, window, pooling.kernel, pooling.stride, layout.local_padding(),
                          pooling.dilation, pooling.ceil_mode);
    return std::vector{made[0].toTensor(),
                       layout.places_in_tensor(made[1].toTensor(), window.sizes())};
  });
}

/// max_pool_with_indices_backward(grad, self, kernel_size, stride, padding, dilation, ceil_mode,
/// indices), with the indices of the forward, each converted to its window.
void max_pool_backward(const KernelCall& call) {
  const PoolingArgs pooling = pooling_of(call);
  const at::Tensor indices = call.tensor("indices");
  pooled_backward(
      call, [&](const PoolingLayout& layout, const at::Tensor& grad, const at::Tensor& window) {
        const at::Tensor places = layout.places_in_window(indices, window.sizes());
        return run(call.op, grad, window, pooling.kernel, pooling.stride, layout.local_padding(),
                   pooling.dilation, pooling.ceil_mode, places)[0]
            .toTensor();
      });
}

/// The divisor of averages: one number that the kernel applies, or one per output, in which case
/// the kernel only sums.
struct Divisor {
  int64_t number = 1;
  at::Tensor each;

  Divisor(const PoolingLayout& layout, const c10::IValue& given, bool count_padding,
          const at::TensorOptions& options) {
    if (!given.isNone()) {
      number = given.toInt();
      return;
    }
    const at::Tensor all = layout.divisor(count_padding);
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
void avg_pool(const KernelCall& call) {
  const PoolingArgs pooling = pooling_of(call);
  const bool count_padding = call.arg("count_include_pad").toBool();
  const c10::IValue given = call.arg("divisor_override");
  pooled(call, [&](const PoolingLayout& layout, const at::Tensor& window) {
    const at::TensorOptions options = window.options();
    const Divisor divisor(layout, given, count_padding, wide(options));
    const at::Tensor addends = divisor.each.defined() ? window.to(wide(options)) : window;
    at::Tensor out = run(call.op, addends, pooling.kernel, pooling.stride, layout.local_padding(),
                         pooling.ceil_mode, count_padding, divisor.number)[0]
                         .toTensor();
    if (divisor.each.defined()) out = out.div_(divisor.each).to(options);
    return std::vector{out};
  });
}

/// avg_pool_backward(grad, self, kernel_size, stride, padding, ceil_mode, count_include_pad,
/// divisor_override)
void avg_pool_backward(const KernelCall& call) {
  const PoolingArgs pooling = pooling_of(call);
  const bool count_padding = call.arg("count_include_pad").toBool();
  const c10::IValue given = call.arg("divisor_override");
  pooled_backward(
      call, [&](const PoolingLayout& layout, const at::Tensor& grad, const at::Tensor& window) {
        const Divisor divisor(layout, given, count_padding, grad.options());
        return run(call.op, divisor.each.defined() ? grad / divisor.each : grad, window,
                   pooling.kernel, pooling.stride, layout.local_padding(), pooling.ceil_mode,
                   count_padding, divisor.number)[0]
            .toTensor();
      });
}

/// The local kernels would take the padding or the edges of a part for those of the tensor: the op
/// itself runs on local tensors only if no spatial dim is sharded.
void pooling(const KernelCall& call) {
  const bool is_max = call.name.find("max_pool") != std::string_view::npos;
  if (is_backward(call.name)) return is_max ? max_pool_backward(call) : avg_pool_backward(call);
  return is_max ? max_pool(call) : avg_pool(call);
}

bool is_floating(DType dtype) { return at::isFloatingType(static_cast<at::ScalarType>(dtype)); }

/// Rows that shard a spatial dim.
std::vector<rules::Row> pooling_rows(const rules::OpCall& call, int axis) {
  const auto operands = call.operands();
  const bool backward = is_backward(call.op);
  const Sharding& input = operands[backward ? 1 : 0];
  const PoolingArgs args = read_pooling(call.op, call.bool_or("ceil_mode", false),
                                        [&](std::string_view name) { return call.ints(name); });
  const int first = input.ndim() - args.dims();
  if (!is_floating(input.dtype()) || input.numel() == 0 || (first != 1 && first != 2)) return {};
  if (!args.are_valid(as_ints(input.shape()).slice(static_cast<size_t>(first)))) return {};
  const size_t results = call.op.find("max_pool") != std::string_view::npos ? 2 : 1;
  std::vector<rules::Row> out;
  for (int dim = first; dim < input.ndim(); ++dim) {
    const int d = dim - first;
    // The first position inside of the tensor in the kernel's window is then not the nearest one.
    if (args.dilation[static_cast<size_t>(d)] > 1 && args.padding[static_cast<size_t>(d)] > 0)
      continue;
    for (rules::Row& row : rows_sharding(input, axis, dim)) {
      const Placement placement = row.operands[0];
      row.operands.assign(operands.size(), Shard(dim));  // of the output
      row.operands[backward ? 1 : 0] = placement;
      row.results.assign(backward ? 1 : results, backward ? placement : Shard(dim));
      if (row.as_is >= 0) row.as_is = backward ? 1 : 0;
      row.comm = rules::KernelComm::exchange;
      row.sent = args.halo(d) * elements_beside(input, axis, dim) * dtype_bytes(input.dtype());
      out.push_back(std::move(row));
    }
  }
  return out;
}

/// max_pool3d_with_indices: libtorch's Meta kernel for it is in Python.
std::vector<std::optional<rules::ResultMeta>> infer_max_pool3d(std::span<const c10::IValue> args) {
  const at::Tensor& input = args[0].toTensor();
  const PoolingArgs pooling(3, args[1].toIntVector(), args[2].toIntVector(), args[3].toIntVector(),
                            args[4].toIntVector(), args[5].toBool());
  const int64_t first = input.dim() - pooling.dims();
  if (first != 1 && first != 2) return {};  // libtorch reports the error
  const auto plane = static_cast<size_t>(first);
  if (!pooling.are_valid(input.sizes().slice(plane))) return {};
  std::vector<int64_t> shape = input.sizes().vec();
  for (int d = 0; d < pooling.dims(); ++d) {
    int64_t& size = shape[plane + static_cast<size_t>(d)];
    size = pooling.output_size(d, size);
  }
  const auto format = first == 2 ? input.suggest_memory_format() : at::MemoryFormat::Contiguous;
  const auto stride = output_stride(shape, format);
  return {rules::ResultMeta{shape, stride, static_cast<DType>(input.scalar_type())},
          rules::ResultMeta{shape, stride, DType::i64}};
}

}  // namespace

void install_pooling() {
  set_infer("aten::max_pool3d_with_indices", infer_max_pool3d);
  add_row_kernel("pooling", pooling, rules::KernelComm::exchange, pooling_rows);
}

}  // namespace tessera::dtensor
