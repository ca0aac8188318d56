#include <ATen/AccumulateType.h>
#include <ATen/TensorOperators.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/native_batch_norm.h>
#include <ATen/ops/native_batch_norm_backward.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <cmath>

#include "tessera/dtensor/dispatch/decide/row_kernel.h"
#include "tessera/dtensor/ops/channel_statistics.h"
#include "tessera/dtensor/ops/install.h"
#include "tessera/dtensor/ops/sharded_dim_rows.h"
#include "tessera/sharding/local_shape.h"

/// Batch norm in training of an input sharded along its batch or spatial dims. The statistics are
/// those of the whole batch, as on one rank. The result and the gradient have the input's sharding;
/// two numbers per channel are reduced in forward and two in backward.
namespace tessera::dtensor {
namespace {

constexpr int kChannelDim = 1;

/// The first argument with one of these names.
c10::IValue argument_of(const KernelCall& call, std::initializer_list<std::string_view> names) {
  for (const auto name : names) {
    const c10::IValue value = call.arg(name);
    if (!value.isNone()) return value;
  }
  return {};
}

/// The sharding of the input. Only tensors come before it, so operands count as arguments do.
const Sharding& input_sharding(const KernelCall& call) {
  const auto& arguments = call.op.schema().arguments();
  size_t i = 0;
  while (arguments[i].name() != "input") ++i;
  return call.operands[i];
}

/// The dtype of the statistics that libtorch saves for backward.
at::ScalarType saved_type(const at::Tensor& input, std::initializer_list<at::Tensor> parameters) {
  const at::ScalarType dtype = input.scalar_type();
  if (!input.is_cpu()) return at::toAccumulateType(dtype, /*is_cuda=*/true);
  const bool mixed = std::ranges::any_of(parameters, [](const at::Tensor& parameter) {
    return parameter.defined() && parameter.scalar_type() == at::kFloat;
  });
  return mixed && at::isReducedFloatingType(dtype) ? at::kFloat : dtype;
}

/// The dtype of parameters and statistics in the local kernels.
at::ScalarType computed_type(at::ScalarType input) {
  return at::isReducedFloatingType(input) ? at::kFloat : input;
}

std::optional<at::Tensor> as_type(const at::Tensor& tensor, at::ScalarType dtype) {
  return tensor.defined() ? std::optional<at::Tensor>(tensor.to(dtype)) : std::nullopt;
}

/// momentum * now + (1 - momentum) * before, in the dtype of `before`.
at::Tensor moved_average(const at::Tensor& before, const at::Tensor& now, double momentum) {
  return (now * momentum + before.to(now.scalar_type()) * (1 - momentum)).to(before.scalar_type());
}

/// One call of any variant of batch norm in training.
class Forward {
 public:
  explicit Forward(const KernelCall& call)
      : call_(call),
        layout_(input_sharding(call)),
        momentum_(argument_of(call, {"momentum", "exponential_average_factor"}).toDouble()),
        local_(call.tensor("input")),
        statistics_(channel_statistics(layout_, local_)),
        saved_(saved_type(local_, {call.tensor("weight"), call.tensor("bias"),
                                   call.tensor("running_mean"), call.tensor("running_var")})) {
    const c10::IValue eps = argument_of(call, {"eps", "epsilon"});
    if (!eps.isNone()) eps_ = eps.toDouble();
  }

  at::Tensor normalized() const {
    if (local_.numel() == 0 || local_.is_meta()) return at::empty_like(local_);
    const at::ScalarType dtype = computed_type(local_.scalar_type());
    return std::get<0>(at::native_batch_norm(
        local_, as_type(call_.tensor("weight"), dtype), as_type(call_.tensor("bias"), dtype),
        statistics_.mean.to(dtype), statistics_.var.to(dtype), /*training=*/false, 0, eps_));
  }
  at::Tensor mean() const { return statistics_.mean.to(saved_); }
  at::Tensor var() const { return statistics_.var.to(saved_); }
  at::Tensor invstd() const { return (statistics_.var + eps_).rsqrt().to(saved_); }
  /// Empty, as from kernels that reserve no memory for backward.
  at::Tensor reserve() const { return at::empty({0}, local_.options().dtype(at::kByte)); }

  /// The new running statistics; written in place unless the variant is functional.
  at::Tensor running_mean() const { return update("running_mean", statistics_.mean); }
  at::Tensor running_var() const {
    const double n = layout_.count();
    return update("running_var", statistics_.var * (n / (n - 1)));
  }

 private:
  at::Tensor update(std::string_view name, const at::Tensor& now) const {
    const at::Tensor before = call_.tensor(name);
    if (!before.defined()) return {};
    const at::Tensor after = moved_average(before, now, momentum_);
    if (call_.name.find("_functional") == std::string_view::npos) before.copy_(after);
    return after;
  }

  const KernelCall& call_;
  ChannelLayout layout_;
  double momentum_;
  double eps_ = 0;
  at::Tensor local_;
  ChannelStatistics statistics_;
  at::ScalarType saved_;
};

bool is_update_only(std::string_view op) { return op.starts_with("aten::batch_norm_update_stats"); }

/// All variants: (result, mean, invstd), and what some add to it.
void batch_norm(const KernelCall& call) {
  const Forward forward(call);
  const at::Tensor mean = forward.running_mean(), var = forward.running_var();
  // batch_norm_update_stats(input, running_mean?, running_var?, momentum) -> (mean, var)
  if (is_update_only(call.name)) return call.give(forward.mean(), forward.var());
  std::vector<at::Tensor> results = {forward.normalized(), forward.mean(), forward.invstd()};
  const auto& returns = call.op.schema().returns();
  for (size_t r = results.size(); r < returns.size(); ++r) {
    const std::string& name = returns[r].name();
    results.push_back(name == "running_mean_out"  ? mean
                      : name == "running_var_out" ? var
                                                  : forward.reserve());
  }
  call.give();
  for (at::Tensor& result : results) call.stack.emplace_back(std::move(result));
}

/// Sums over the local elements of each channel: of the gradient, and of the gradient times the
/// normalized input. [2, channels]
at::Tensor gradient_sums(const ChannelLayout& layout, const at::Tensor& grad,
                         const at::Tensor& local, const at::Tensor& mean,
                         const at::Tensor& invstd) {
  const auto options = mean.options();
  if (local.numel() == 0 || local.is_meta()) {
    return at::zeros({2, layout.local_channels()}, options);
  }
  const auto [none, d_weight, d_bias] = at::native_batch_norm_backward(
      grad, local, at::ones({layout.local_channels()}, options), {}, {}, mean, invstd,
      /*train=*/true, 0, {false, true, true});
  return at::stack({d_bias, d_weight}).to(options.dtype());
}

/// scale * (grad - mean of grad - normalized input * mean of their product); `means` has the two
/// means over all ranks.
at::Tensor input_gradient(const at::Tensor& grad, const at::Tensor& local, const at::Tensor& mean,
                          const at::Tensor& invstd, const at::Tensor& scale,
                          const at::Tensor& means) {
  std::vector<int64_t> shape(static_cast<size_t>(local.dim()), 1);
  shape[1] = local.size(1);
  const auto wide = [&](const at::Tensor& per_channel) { return per_channel.reshape(shape); };
  at::Tensor out = local.sub(wide(mean)).mul_(wide(invstd * means[1]));
  return out.add_(wide(means[0])).neg_().add_(grad).mul_(wide(scale));
}

/// native_batch_norm_backward and the variants of other backends, which take the same tensors in
/// other orders. Gradients of the parameters are complete, not Partial: the input's gradient needs
/// the same sums.
void batch_norm_backward(const KernelCall& call) {
  const ChannelLayout layout(input_sharding(call));
  const at::Tensor local = call.tensor("input");
  const at::Tensor grad = argument_of(call, {"grad_out", "grad_output"}).toTensor();
  const at::ScalarType dtype = computed_type(local.scalar_type());
  const at::Tensor mean = call.tensor("save_mean").to(dtype);
  const at::Tensor invstd = argument_of(call, {"save_invstd", "save_var"}).toTensor().to(dtype);
  const at::Tensor weight = call.tensor("weight");
  const at::Tensor sums = layout.sum_over_ranks(gradient_sums(layout, grad, local, mean, invstd));

  std::vector<bool> wanted = {true, true, true};
  if (const auto mask = call.arg("output_mask"); mask.isBoolList()) {
    for (size_t i = 0; i < wanted.size(); ++i) wanted[i] = mask.toBoolList()[i];
  }
  at::Tensor d_input, d_weight, d_bias;
  if (wanted[0]) {
    const at::Tensor scale = weight.defined() ? invstd * weight.to(dtype) : invstd;
    const at::Tensor out = local.numel() == 0 ? at::empty_like(local)
                                              : input_gradient(grad, local, mean, invstd, scale,
                                                               sums / layout.count());
    d_input = out.to(local.scalar_type()).contiguous(local.suggest_memory_format());
  }
  const at::ScalarType of_weight = weight.defined() ? weight.scalar_type() : dtype;
  if (wanted[1]) d_weight = sums[1].to(of_weight);
  if (wanted[2]) d_bias = sums[0].to(of_weight);
  call.give(std::move(d_input), std::move(d_weight), std::move(d_bias));
}

/// Whether each result of a variant is shaped as the input (p), has a number per channel (c), or
/// neither (_).
std::string_view results_of(std::string_view op) {
  if (op.find("_backward") != std::string_view::npos) return "pcc";
  if (is_update_only(op)) return "cc";
  if (op.starts_with("aten::_native_batch_norm_legit_functional")) return "pcccc";
  if (op.starts_with("aten::_batch_norm_with_update_functional")) return "pcc_cc";
  if (op.starts_with("aten::_batch_norm_with_update") || op.starts_with("aten::cudnn"))
    return "pcc_";
  return "pcc";
}

/// Only the native variants have rows in which the op itself runs on channels.
bool runs_by_channel(std::string_view op) {
  return op.find("native_batch_norm") != std::string_view::npos ||
         op.find("_batch_norm_with_update") != std::string_view::npos || is_update_only(op);
}

bool leaves_some_empty(const Sharding& input, int axis, int dim) {
  const int ranks = input.mesh().size(axis);
  return chunk_interval(input.shape()[static_cast<size_t>(dim)], ranks, ranks - 1).size() == 0;
}

/// Rows that shard any dim of the input; of the channels those that the op itself does not take.
std::vector<rules::Row> batch_norm_rows(const rules::OpCall& call, int axis) {
  const auto* given = call.find("input");
  const Sharding* found = given == nullptr ? nullptr : std::get_if<Sharding>(given);
  if (found == nullptr || !found->defined()) return {};
  const Sharding input = *found;
  if (input.ndim() < 2 || input.numel() == 0) return {};
  const auto operands = call.operands();
  const int ranks = input.mesh().size(axis);
  std::vector<rules::Row> out;
  for (int dim = 0; dim < input.ndim(); ++dim) {
    for (rules::Row& row : rows_sharding(input, axis, dim)) {
      const Placement whole = row.operands[0];
      const bool channels = dim == kChannelDim;
      if (channels && runs_by_channel(call.op) && whole.is_plain_shard() &&
          !leaves_some_empty(input, axis, dim))
        continue;
      const Placement per_channel = channels ? whole.on_dim(0) : Replicate();
      row.operands.clear();
      for (const Sharding& operand : operands) {
        const bool is_input =
            operand.defined() && std::ranges::equal(operand.shape(), input.shape());
        const bool has_channels = operand.defined() && operand.ndim() == 1 &&
                                  operand.shape()[0] == input.shape()[kChannelDim];
        row.operands.push_back(is_input ? whole : has_channels ? per_channel : Replicate());
      }
      for (const char result : results_of(call.op)) {
        row.results.push_back(result == 'p' ? whole : result == 'c' ? per_channel : Replicate());
      }
      if (row.as_is >= 0) {
        const auto at = std::ranges::find(operands, input);
        row.as_is = static_cast<int>(at - operands.begin());
      }
      if (!channels) {
        row.comm = rules::KernelComm::combine;
        row.sent =
            2 * 2 * input.shape()[kChannelDim] * dtype_bytes(DType::f64) * (ranks - 1) / ranks;
      }
      out.push_back(std::move(row));
    }
  }
  return out;
}

}  // namespace

void install_batch_norm() {
  add_row_kernel("batch_norm", batch_norm, rules::KernelComm::combine, batch_norm_rows);
  add_row_kernel("batch_norm_backward", batch_norm_backward, rules::KernelComm::combine,
                 batch_norm_rows);
}

}  // namespace tessera::dtensor
