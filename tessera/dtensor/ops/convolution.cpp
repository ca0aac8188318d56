// Convolutions of spatially sharded tensors: each rank convolves a window of the input, its part
// plus a halo, so that the output is sharded in the same dim. Other axes may shard the batch or the
// channels at the same time. Other convolutions are handled by the rules.
#include <ATen/ops/convolution.h>
#include <ATen/ops/convolution_backward.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>

#include <algorithm>

#include "tessera/base/errors.h"
#include "tessera/dtensor/dispatch/dispatch.h"
#include "tessera/dtensor/dispatch/register.h"
#include "tessera/dtensor/layout.h"
#include "tessera/dtensor/ops/convolution_layout.h"
#include "tessera/dtensor/ops/convolution_shape.h"
#include "tessera/dtensor/ops/halo_exchange.h"
#include "tessera/dtensor/ops/install.h"
#include "tessera/dtensor/ops/moved_operands.h"
#include "tessera/observe/call_site.h"

namespace tessera::dtensor {
namespace {

at::IntArrayRef ref(std::span<const int64_t> sizes) { return {sizes.data(), sizes.size()}; }

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

/// One call: its layout, its windows and the arguments for the local convolution.
class Convolution {
 public:
  Convolution(const at::Tensor& input, const at::Tensor& weight, ConvolutionArgs args,
              const DeviceMesh& mesh)
      : args_(std::move(args)) {
    check_types(input, weight);
    const auto shape = convolution_shape({input.sizes().data(), input.sizes().size()},
                                         {weight.sizes().data(), weight.sizes().size()}, args_);
    format_ = output_format(input, weight);
    layout_ = lay_out(sharding_of(input, mesh), sharding_of(weight, mesh), args_, shape, format_);
    kernel_ = weight.sizes().slice(2).vec();
    local_ = args_;
    if (!mesh.contains_me()) return;
    const auto mine = windows_at(*mesh.my_coordinate());
    for (size_t i = 0; i < layout_.dims.size(); ++i) {
      const auto d = static_cast<size_t>(layout_.dims[i] - 2);
      local_.padding[d] = 0;
      local_.output_padding[d] = mine[i].beyond;
      windows_.push_back(mine[i]);
    }
  }

  static Sharding sharding_of(const at::Tensor& tensor, const DeviceMesh& mesh) {
    const ShardedMeta* meta = sharded_meta(tensor);
    return meta != nullptr ? meta->sharding() : as_replicated(tensor, mesh);
  }

  const Layout& layout() const { return layout_; }
  const ConvolutionArgs& local() const { return local_; }
  bool makes_nothing() const { return layout_.output.local_numel() == 0; }

  HaloExchange exchange() const {
    return HaloExchange(layout_.input, layout_.dims, [this](std::span<const int> at) {
      std::vector<Interval> out;
      for (const Window& window : windows_at(at)) out.push_back(window.input);
      return out;
    });
  }

  /// The results of the local convolution that are kept.
  at::Tensor kept(at::Tensor made) const {
    for (size_t i = 0; i < windows_.size(); ++i) {
      if (windows_[i].made == windows_[i].keep) continue;
      made = made.narrow(layout_.dims[i], windows_[i].skip, windows_[i].keep);
    }
    return made.contiguous(format_);
  }
  /// The adjoint for a gradient: zeros where results are skipped.
  at::Tensor unkept(const at::Tensor& grad) const {
    std::vector<int64_t> sizes = grad.sizes().vec();
    for (size_t i = 0; i < windows_.size(); ++i) {
      sizes[static_cast<size_t>(layout_.dims[i])] = windows_[i].made;
    }
    if (grad.sizes().equals(sizes)) return grad;
    at::Tensor out = at::zeros(sizes, grad.options());
    at::Tensor place = out;
    for (size_t i = 0; i < windows_.size(); ++i) {
      place = place.narrow(layout_.dims[i], windows_[i].skip, windows_[i].keep);
    }
    place.copy_(grad);
    return out;
  }

  /// If outputs are addends, only one rank adds the bias.
  bool brings_bias() const {
    const auto here = layout_.input.mesh().my_coordinate();
    if (!here) return true;
    for (size_t a = 0; a < layout_.roles.size(); ++a) {
      if (layout_.roles[a] == Role::in_channel && here->at(a) != 0) return false;
    }
    return true;
  }

 private:
  /// By index into the layout's dims. Empty windows for a rank without outputs.
  std::vector<Window> windows_at(std::span<const int> coordinate) const {
    std::vector<Window> out;
    const auto shape = tessera::local_shape(layout_.output, coordinate);
    const auto offset = global_offset(layout_.output, coordinate);
    const bool nothing = std::ranges::find(shape, 0) != shape.end();
    for (const int dim : layout_.dims) {
      const auto d = static_cast<size_t>(dim);
      const Interval part{offset[d], nothing ? offset[d] : offset[d] + shape[d]};
      out.push_back(window_of(args_, d - 2, kernel_[d - 2], layout_.input.shape()[d], part));
    }
    return out;
  }

  ConvolutionArgs args_;
  ConvolutionArgs local_;
  Layout layout_;
  std::vector<int64_t> kernel_;
  std::vector<Window> windows_;
  at::MemoryFormat format_;
};

ConvolutionArgs read_args(std::span<const c10::IValue> from) {
  return {.stride = from[0].toIntVector(),
          .padding = from[1].toIntVector(),
          .dilation = from[2].toIntVector(),
          .output_padding = from[4].toIntVector(),
          .transposed = from[3].toBool(),
          .groups = from[5].toInt()};
}

/// Whether this handler takes the call: the input is sharded in a spatial dim, and all tensors are
/// on its mesh. Otherwise the common path runs, which also reports errors about foreign tensors.
bool is_cut_in_space(const OpEntry& entry, const Stack& stack, const at::Tensor& input) {
  const ShardedMeta* meta = sharded_meta(input);
  if (meta == nullptr || input.dim() < 3 || input.size(1) == 0) return false;
  const auto in_space = [](const Placement& p) { return p.is_sharded() && p.dim() >= 2; };
  return std::ranges::any_of(meta->sharding().placements(), in_space) &&
         all_on(meta->sharding().mesh(), entry, stack);
}

/// convolution(input, weight, bias?, stride, padding, dilation, transposed, output_padding, groups)
/// or _convolution, which has further flags for kernels.
bool convolution(const OpEntry& entry, const c10::OperatorHandle&, Stack& stack) {
  const auto args = torch::jit::last(stack, entry.args.size());
  const at::Tensor& input = args[0].toTensor();
  if (!is_cut_in_space(entry, stack, input)) return false;
  const at::Tensor& weight = args[1].toTensor();
  const Convolution call(input, weight, read_args({&args[3], 6}),
                         sharded_meta(input)->sharding().mesh());
  const Layout& layout = call.layout();
  check_bias(weight, args[2].isTensor() ? args[2].toTensor() : at::Tensor(),
             layout.output.shape()[1]);
  const MovedOperands operands(entry, stack, {layout.input, layout.weight, layout.bias});
  const at::Tensor of_weight = operands.local(1);
  at::Tensor bias = operands.local(2);
  at::Tensor window;
  {
    const at::Tensor part = operands.local(0);
    const comm::CallSite site({.op = entry.name});
    window = call.exchange().gather(part);
  }
  at::Tensor out;
  if (call.makes_nothing()) {
    out = at::empty(ref(layout.output.local_shape()), window.options());
  } else {
    const ConvolutionArgs& a = call.local();
    if (!call.brings_bias()) bias = at::Tensor();
    const auto with = bias.defined() ? std::optional<at::Tensor>(bias) : std::nullopt;
    out = call.kept(at::convolution(window, of_weight, with, a.stride, a.padding, a.dilation,
                                    a.transposed, a.output_padding, a.groups));
  }
  torch::jit::drop(stack, entry.args.size());
  torch::jit::push(stack, wrap(std::move(out), layout.output));
  return true;
}

/// convolution_backward(grad, input, weight, bias_sizes?, stride, padding, dilation, transposed,
/// output_padding, groups, mask)
bool convolution_backward(const OpEntry& entry, const c10::OperatorHandle&, Stack& stack) {
  const auto args = torch::jit::last(stack, entry.args.size());
  const at::Tensor& input = args[1].toTensor();
  if (!is_cut_in_space(entry, stack, input)) return false;
  const auto wanted = args[10].toBoolList();
  const Convolution call(input, args[2].toTensor(), read_args({&args[4], 6}),
                         sharded_meta(input)->sharding().mesh());
  const Layout& layout = call.layout();
  // If outputs are addends, each has the full gradient.
  const MovedOperands operands(entry, stack,
                               {without_partial(layout.output), layout.input, layout.weight});
  const at::Tensor grad = operands.local(0);
  const at::Tensor part = operands.local(1);
  const at::Tensor weight = operands.local(2);
  const HaloExchange exchange = call.exchange();
  const comm::CallSite site({.op = entry.name});
  // The input's values are needed for the weight's gradient only.
  const at::Tensor window =
      wanted[1] ? exchange.gather(part) : at::empty(exchange.window_shape(), part.options());
  at::Tensor d_window, d_weight, d_bias;
  const std::vector<int64_t> bias_sizes = {layout.bias.local_shape()[0]};
  if (call.makes_nothing()) {
    if (wanted[0]) d_window = at::zeros(exchange.window_shape(), part.options());
    if (wanted[1]) d_weight = at::zeros(weight.sizes(), weight.options());
    if (wanted[2]) d_bias = at::zeros(bias_sizes, weight.options());
  } else {
    const ConvolutionArgs& a = call.local();
    std::tie(d_window, d_weight, d_bias) = at::convolution_backward(
        call.unkept(grad), window, weight, bias_sizes, a.stride, a.padding, a.dilation,
        a.transposed, a.output_padding, a.groups, {wanted[0], wanted[1], wanted[2]});
  }
  if (wanted[1]) d_weight = d_weight.contiguous(args[2].toTensor().suggest_memory_format());
  torch::jit::drop(stack, entry.args.size());
  at::Tensor none;
  torch::jit::push(stack,
                   wanted[0] ? wrap(exchange.scatter_sum(d_window), input_gradient(layout)) : none,
                   wanted[1] ? wrap(d_weight, weight_gradient(layout, layout.weight)) : none,
                   wanted[2] ? wrap(d_bias, weight_gradient(layout, layout.bias)) : none);
  return true;
}

/// libtorch's Meta kernel for it is in Python.
std::vector<std::optional<rules::ResultMeta>> infer(std::span<const c10::IValue> args) {
  const at::Tensor& input = args[0].toTensor();
  const at::Tensor& weight = args[1].toTensor();
  ConvolutionArgs read = read_args(args.subspan(3, 6));
  const auto shape = convolution_shape({input.sizes().data(), input.sizes().size()},
                                       {weight.sizes().data(), weight.sizes().size()}, read);
  return {rules::ResultMeta{shape, output_stride(shape, output_format(input, weight)),
                            static_cast<DType>(input.scalar_type())}};
}

}  // namespace

void install_convolution() {
  for (const char* op : {"aten::convolution", "aten::_convolution"}) {
    set_infer(op, infer);
    set_decomposition(op, convolution);
  }
  set_decomposition("aten::convolution_backward", convolution_backward);
}

}  // namespace tessera::dtensor
