// Convolutions of spatially sharded tensors: each rank convolves a window of the input, its part
// plus a halo, so that the output is sharded in the same dim. Other axes may shard the batch or the
// channels at the same time, by the rows of the rule.
#include <ATen/ops/convolution.h>
#include <ATen/ops/convolution_backward.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>

#include <algorithm>

#include "tessera/base/errors.h"
#include "tessera/dtensor/dispatch/decide/row_kernel.h"
#include "tessera/dtensor/kernels/register.h"
#include "tessera/dtensor/ops/install.h"
#include "tessera/dtensor/ops/sharded_dim_rows.h"
#include "tessera/dtensor/ops/windows/convolution_shape.h"
#include "tessera/dtensor/ops/windows/halo_exchange.h"
#include "tessera/dtensor/output_stride.h"
#include "tessera/dtensor/tensor/layout.h"
#include "tessera/dtensor/tensor/sharded_tensor.h"

namespace tessera::dtensor {
namespace {

constexpr int kFirstSpatial = 2;

/// As in libtorch: channels last if either is.
at::MemoryFormat output_format(const at::Tensor& input, const at::Tensor& weight) {
  const auto format = input.suggest_memory_format();
  return format == at::MemoryFormat::Contiguous ? weight.suggest_memory_format() : format;
}

/// Checks what libtorch's kernel would detect only after the exchange, and a rank without outputs
/// never.
void check_types(const at::Tensor& input, const at::Tensor& weight) {
  require(input.scalar_type() == weight.scalar_type(), "convolution of ",
          c10::toString(input.scalar_type()), " with a weight of ",
          c10::toString(weight.scalar_type()), "; cast one");
}

void check_bias(const at::Tensor& weight, const at::Tensor& bias, int64_t channels) {
  if (!bias.defined()) return;
  check_types(bias, weight);
  require(bias.dim() == 1 && bias.size(0) == channels, "convolution: a bias ",
          shape_text(bias.sizes()), " for ", channels, " output channels");
}

/// From stride, padding, dilation, transposed, output_padding and groups, in this order.
ConvolutionArgs read_args(std::span<const c10::IValue> from) {
  return {.stride = from[0].toIntVector(),
          .padding = from[1].toIntVector(),
          .dilation = from[2].toIntVector(),
          .output_padding = from[4].toIntVector(),
          .transposed = from[3].toBool(),
          .groups = from[5].toInt()};
}

/// The convolution of this rank's window.
class LocalConvolution {
 public:
  /// The output's sharding may be that of its gradient.
  LocalConvolution(const Sharding& input, const Sharding& output, const at::Tensor& weight,
                   ConvolutionArgs args)
      : args_(std::move(args)),
        input_(input),
        output_(output),
        kernel_(weight.sizes().slice(kFirstSpatial).vec()) {
    expand_lists(args_, kernel_.size());
    for (const Placement& p : input.placements()) {
      const bool in_space = p.is_sharded() && p.dim() >= kFirstSpatial;
      if (in_space && std::ranges::find(dims_, p.dim()) == dims_.end()) dims_.push_back(p.dim());
    }
    local_ = args_;
    windows_ = windows_at(*input.mesh().my_coordinate());
    for (size_t i = 0; i < dims_.size(); ++i) {
      const auto d = static_cast<size_t>(dims_[i] - kFirstSpatial);
      local_.padding[d] = 0;
      local_.output_padding[d] = windows_[i].beyond;
    }
  }

  /// For the window.
  const ConvolutionArgs& args() const { return local_; }
  bool makes_nothing() const { return output_.local_numel() == 0; }

  HaloExchange exchange() const {
    return HaloExchange(input_, dims_, [this](std::span<const int> at) {
      std::vector<Interval> out;
      for (const Window& window : windows_at(at)) out.push_back(window.input);
      return out;
    });
  }

  /// The results of the local convolution that are kept.
  at::Tensor kept(at::Tensor made) const {
    for (size_t i = 0; i < windows_.size(); ++i) {
      if (windows_[i].made == windows_[i].keep) continue;
      made = made.narrow(dims_[i], windows_[i].skip, windows_[i].keep);
    }
    return made;
  }
  /// The adjoint for a gradient: zeros where results are skipped.
  at::Tensor unkept(const at::Tensor& grad) const {
    std::vector<int64_t> sizes = grad.sizes().vec();
    for (size_t i = 0; i < windows_.size(); ++i) {
      sizes[static_cast<size_t>(dims_[i])] = windows_[i].made;
    }
    if (grad.sizes().equals(sizes)) return grad;
    at::Tensor out = at::zeros(sizes, grad.options());
    at::Tensor place = out;
    for (size_t i = 0; i < windows_.size(); ++i) {
      place = place.narrow(dims_[i], windows_[i].skip, windows_[i].keep);
    }
    place.copy_(grad);
    return out;
  }

 private:
  /// By index into dims_. Empty windows for a rank without outputs.
  std::vector<Window> windows_at(std::span<const int> coordinate) const {
    std::vector<Window> out;
    const auto shape = tessera::local_shape(output_, coordinate);
    const auto offset = global_offset(output_, coordinate);
    const bool nothing = std::ranges::find(shape, 0) != shape.end();
    for (const int dim : dims_) {
      const auto d = static_cast<size_t>(dim);
      const auto spatial = d - kFirstSpatial;
      const Interval part{offset[d], nothing ? offset[d] : offset[d] + shape[d]};
      out.push_back(window_of(args_, spatial, kernel_[spatial], input_.shape()[d], part));
    }
    return out;
  }

  ConvolutionArgs args_;
  ConvolutionArgs local_;
  Sharding input_, output_;
  std::vector<int64_t> kernel_;
  std::vector<int> dims_;  // sharded spatial dims, as dims of the tensor
  std::vector<Window> windows_;
};

/// convolution(input, weight, bias?, stride, padding, dilation, transposed, output_padding, groups)
/// or _convolution, which has further flags for kernels.
void convolution(const KernelCall& call) {
  const auto args = call.args();
  const at::Tensor weight = args[1].toTensor();
  const at::Tensor bias = call.tensor("bias");
  const Sharding& output = call.results[0];
  const LocalConvolution local(call.operands[0], output, weight, read_args(args.subspan(3, 6)));
  const at::Tensor window = local.exchange().gather(args[0].toTensor());
  if (local.makes_nothing()) {
    return call.give(at::empty(as_ints(output.local_shape()), window.options()));
  }
  const ConvolutionArgs& a = local.args();
  const auto with = bias.defined() ? std::optional<at::Tensor>(bias) : std::nullopt;
  call.give(
      strided_as(local.kept(at::convolution(window, weight, with, a.stride, a.padding, a.dilation,
                                            a.transposed, a.output_padding, a.groups)),
                 output));
}

/// convolution_backward(grad, input, weight, bias_sizes?, stride, padding, dilation, transposed,
/// output_padding, groups, mask)
void convolution_backward(const KernelCall& call) {
  const auto args = call.args();
  const at::Tensor grad = args[0].toTensor();
  const at::Tensor part = args[1].toTensor();
  const at::Tensor weight = args[2].toTensor();
  const auto wanted = args[10].toBoolList();
  const LocalConvolution local(call.operands[1], call.operands[0], weight,
                               read_args(args.subspan(4, 6)));
  const HaloExchange exchange = local.exchange();
  // The input's values are needed for the weight's gradient only.
  const at::Tensor window =
      wanted[1] ? exchange.gather(part) : at::empty(exchange.window_shape(), part.options());
  at::Tensor d_window, d_weight, d_bias;
  const std::vector<int64_t> bias_sizes = {grad.size(1)};
  if (local.makes_nothing()) {
    if (wanted[0]) d_window = at::zeros(exchange.window_shape(), part.options());
    if (wanted[1]) d_weight = at::zeros(weight.sizes(), weight.options());
    if (wanted[2]) d_bias = at::zeros(bias_sizes, weight.options());
  } else {
    const ConvolutionArgs& a = local.args();
    std::tie(d_window, d_weight, d_bias) = at::convolution_backward(
        local.unkept(grad), window, weight, bias_sizes, a.stride, a.padding, a.dilation,
        a.transposed, a.output_padding, a.groups, {wanted[0], wanted[1], wanted[2]});
  }
  if (wanted[1]) d_weight = strided_as(d_weight, call.results[1]);
  at::Tensor d_input;
  if (wanted[0]) d_input = strided_as(exchange.scatter_sum(d_window), call.results[0]);
  call.give(std::move(d_input), std::move(d_weight), std::move(d_bias));
}

/// convolution_backward where there are no images or no channels: every gradient is zeros. Without
/// input channels the output has none either, whatever the weight says: no row describes the call.
bool backward_of_nothing(const OpEntry& entry, const c10::OperatorHandle&,
                         torch::jit::Stack& stack) {
  const auto args = torch::jit::last(stack, entry.args.size());
  const at::Tensor& grad = args[0].toTensor();
  if (grad.numel() != 0) return false;
  const at::Tensor weight = args[2].toTensor();
  const auto wanted = args[10].toBoolList();
  at::Tensor d_input, d_weight, d_bias;
  if (wanted[0]) d_input = at::zeros_like(args[1].toTensor());
  if (wanted[1]) d_weight = at::zeros_like(weight);
  if (wanted[2]) d_bias = weight.new_zeros(args[3].toIntVector());
  torch::jit::drop(stack, entry.args.size());
  torch::jit::push(stack, std::move(d_input), std::move(d_weight), std::move(d_bias));
  return true;
}

/// Elements of a spatial dim that a rank needs of its neighbours, for parts that divide evenly.
int64_t halo_of(const rules::OpCall& call, const Sharding& weight, int dim) {
  const auto d = static_cast<size_t>(dim);
  const auto at = [&](std::string_view name) {
    const auto values = call.ints(name);
    return values.empty() ? 1 : values[std::min(d - kFirstSpatial, values.size() - 1)];
  };
  const int64_t reach = at("dilation") * (weight.shape()[d] - 1);
  const int64_t stride = std::max<int64_t>(1, at("stride"));
  if (call.bool_or("transposed", false)) return (reach + stride - 1) / stride;
  return std::max<int64_t>(0, reach + 1 - stride);
}

/// Rows that shard a spatial dim of the input. Of the operands, `input` and the next are the input
/// and the weight; the first is in a backward the gradient.
std::vector<rules::Row> halo_rows(const rules::OpCall& call, int axis, bool backward) {
  const auto operands = call.operands();
  const size_t input = backward ? 1 : 0;
  if (operands.size() < input + 2) return {};
  const Sharding& x = operands[input];
  const Sharding& weight = operands[input + 1];
  if (x.ndim() < kFirstSpatial + 1 || x.ndim() != weight.ndim() || x.shape()[1] == 0) return {};
  std::vector<rules::Row> out;
  for (int dim = kFirstSpatial; dim < x.ndim(); ++dim) {
    for (rules::Row& row : rows_sharding(x, axis, dim)) {
      const Placement placement = row.operands[0];
      row.operands.assign(operands.size(), Replicate());
      row.operands[input] = placement;
      if (backward) {
        row.operands[0] = Shard(dim);
        row.results = {placement, Partial(), Partial()};
      } else {
        row.results = {Shard(dim)};
      }
      if (row.as_is >= 0) row.as_is = static_cast<int>(input);
      row.comm = rules::KernelComm::exchange;
      row.sent =
          halo_of(call, weight, dim) * elements_beside(x, axis, dim) * dtype_bytes(x.dtype());
      out.push_back(std::move(row));
    }
  }
  return out;
}

/// libtorch's Meta kernel for it is in Python.
std::vector<std::optional<rules::ResultMeta>> infer(std::span<const c10::IValue> args) {
  const at::Tensor& input = args[0].toTensor();
  const at::Tensor& weight = args[1].toTensor();
  check_types(input, weight);
  ConvolutionArgs read = read_args(args.subspan(3, 6));
  const std::span<const int64_t> filters(weight.sizes().data(), weight.sizes().size());
  const auto shape = convolution_shape({input.sizes().data(), input.sizes().size()}, filters, read);
  check_bias(weight, args[2].isTensor() ? args[2].toTensor() : at::Tensor(),
             output_channels(filters, read));
  return {rules::ResultMeta{shape, output_stride(shape, output_format(input, weight)),
                            static_cast<DType>(input.scalar_type())}};
}

}  // namespace

void install_convolution() {
  for (const char* op : {"aten::convolution", "aten::_convolution"}) set_infer(op, infer);
  set_special_case("aten::convolution_backward", backward_of_nothing);
  add_row_kernel("convolution", convolution, rules::KernelComm::exchange,
                 [](const rules::OpCall& call, int axis) { return halo_rows(call, axis, false); });
  add_row_kernel("convolution_backward", convolution_backward, rules::KernelComm::exchange,
                 [](const rules::OpCall& call, int axis) { return halo_rows(call, axis, true); });
}

}  // namespace tessera::dtensor
