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

#include "tessera/dtensor/dispatch/dispatch.h"
#include "tessera/dtensor/dispatch/register.h"
#include "tessera/dtensor/layout.h"
#include "tessera/dtensor/ops/channel_statistics.h"
#include "tessera/dtensor/ops/install.h"
#include "tessera/dtensor/ops/moved_operands.h"
#include "tessera/dtensor/ops/output_stride.h"

/// Batch norm in training of an input sharded along its batch or spatial dims. The statistics are
/// those of the whole batch, as on one rank. The result and the gradient have the input's sharding;
/// two numbers per channel are reduced in forward and two in backward. Running statistics are
/// updated completely, whichever ranks have the channels. Everything else, in particular
/// evaluation, is handled by the rules.
namespace tessera::dtensor {
namespace {

/// The argument of this name on the stack; None if the op has none.
c10::IValue argument_named(const c10::OperatorHandle& op, const Stack& stack,
                           std::string_view name) {
  const auto& arguments = op.schema().arguments();
  const size_t base = stack.size() - arguments.size();
  for (size_t i = 0; i < arguments.size(); ++i) {
    if (arguments[i].name() == name) return stack[base + i];
  }
  return {};
}

at::Tensor tensor_named(const c10::OperatorHandle& op, const Stack& stack, std::string_view name) {
  const c10::IValue value = argument_named(op, stack, name);
  return value.isTensor() ? value.toTensor() : at::Tensor();
}

/// The first argument with one of these names.
c10::IValue argument_of(const c10::OperatorHandle& op, const Stack& stack,
                        std::initializer_list<std::string_view> names) {
  for (const auto name : names) {
    const c10::IValue value = argument_named(op, stack, name);
    if (!value.isNone()) return value;
  }
  return {};
}

bool is_replicated(const at::Tensor& tensor) {
  const ShardedMeta* meta = tensor.defined() ? sharded_meta(tensor) : nullptr;
  return meta == nullptr || meta->sharding().is_replicated();
}

/// Only native batch norm has rules.
bool has_rule(const OpEntry& entry) {
  return entry.name.starts_with("aten::native_batch_norm") ||
         entry.name.starts_with("aten::_native_batch_norm") ||
         entry.name.starts_with("aten::_batch_norm_with_update");
}

/// Whether at most the channels are sharded: each rank computes its part without communication.
bool is_whole_by_channel(const Sharding& input) {
  return std::ranges::all_of(
      input.placements(), [](const Placement& p) { return p.is_replicate() || p.is_sharded(1); });
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

at::Tensor as_type(const at::Tensor& tensor, at::ScalarType dtype) {
  return tensor.defined() ? tensor.to(dtype) : tensor;
}

std::optional<at::Tensor> optional(const at::Tensor& tensor) {
  return tensor.defined() ? std::optional<at::Tensor>(tensor) : std::nullopt;
}

/// The input's sharding with dense strides in its memory format: the sharding of results.
Sharding dense(const Sharding& as, at::MemoryFormat format) {
  return as.with_shape({as.shape().begin(), as.shape().end()}, output_stride(as.shape(), format));
}

/// A result with the input's shape; empty on a rank outside the mesh.
at::Tensor wrap_result(const at::Tensor& local, const ChannelLayout& layout,
                       at::MemoryFormat format) {
  const Sharding as = dense(layout.input(), format);
  if (as.mesh().contains_me()) return wrap_as_laid_out(local.contiguous(format), as);
  return wrap(at::empty(as_ints(as.local_shape()), local.options()), as);
}

/// Per operand: the input as in the layout, per-channel tensors accordingly, and tensors that are
/// not read unchanged.
std::vector<Sharding> targets(const OpEntry& entry, const Stack& stack,
                              const ChannelLayout& layout) {
  std::vector<Sharding> out;
  for (const Operand& operand : operands_of(entry, stack)) {
    const at::Tensor& tensor = *operand.tensor;
    if (!tensor.defined()) {
      out.emplace_back();
    } else if (std::ranges::equal(tensor.sizes(), layout.input().shape()) && tensor.dim() > 1) {
      out.push_back(layout.input().with_dtype(static_cast<DType>(tensor.scalar_type())));
    } else if (tensor.dim() == 1 && tensor.size(0) == layout.input().shape()[1]) {
      out.push_back(layout.channels(tensor.scalar_type()));
    } else {
      out.push_back(operand.sharded != nullptr ? operand.sharded->sharding()
                                               : as_replicated(tensor, layout.input().mesh()));
    }
  }
  return out;
}

/// The operand's index among all tensors of the call, by its argument's name; -1: absent.
int operand_named(const OpEntry& entry, const c10::OperatorHandle& op, std::string_view name) {
  int operand = -1;
  const auto& arguments = op.schema().arguments();
  for (size_t i = 0; i < arguments.size(); ++i) {
    if (entry.args[i] == ArgKind::tensor) ++operand;
    if (arguments[i].name() == name) return operand;
  }
  return -1;
}

/// The tensors of a call on this rank, with the shardings of the layout.
class LocalCall {
 public:
  LocalCall(const OpEntry& entry, const c10::OperatorHandle& op, const Stack& stack,
            const ChannelLayout& layout, std::vector<size_t> written = {})
      : entry_(entry),
        op_(op),
        operands_(entry, stack, targets(entry, stack, layout), std::move(written)) {}

  at::Tensor local(std::string_view name) const {
    const int i = operand_named(entry_, op_, name);
    return i < 0 ? at::Tensor() : operands_.local(static_cast<size_t>(i));
  }
  void write(std::string_view name, const at::Tensor& value) const {
    operands_.write(static_cast<size_t>(operand_named(entry_, op_, name)), value);
  }

 private:
  const OpEntry& entry_;
  const c10::OperatorHandle& op_;
  MovedOperands operands_;
};

/// Whether this handler takes a forward call. If only channels are sharded and the running
/// statistics have matching shardings, the rule runs libtorch's kernel instead.
bool takes_forward(const OpEntry& entry, const c10::OperatorHandle& op, const Stack& stack) {
  const c10::IValue training = argument_named(op, stack, "training");
  if (training.isBool() && !training.toBool()) return false;
  const at::Tensor input = tensor_named(op, stack, "input");
  const ShardedMeta* meta = sharded_meta(input);
  if (meta == nullptr || input.dim() < 2 || input.numel() == 0) return false;
  if (!all_on(meta->sharding().mesh(), entry, stack)) return false;
  if (!is_whole_by_channel(meta->sharding())) return true;
  const at::Tensor mean = tensor_named(op, stack, "running_mean");
  const at::Tensor var = tensor_named(op, stack, "running_var");
  if (!is_replicated(mean) || !is_replicated(var)) return true;
  if (meta->sharding().is_replicated()) return false;
  return mean.defined() || var.defined() || !has_rule(entry);
}

/// momentum * now + (1 - momentum) * before, in the dtype of `before`.
at::Tensor moved_average(const at::Tensor& before, const at::Tensor& now, double momentum) {
  return (now * momentum + before.to(now.scalar_type()) * (1 - momentum)).to(before.scalar_type());
}

/// One call of any variant of batch norm in training.
class Forward {
 public:
  Forward(const OpEntry& entry, const c10::OperatorHandle& op, const Stack& stack)
      : input_(tensor_named(op, stack, "input")),
        layout_(sharded_meta(input_)->sharding()),
        writes_(!entry.name.ends_with("_functional")),
        call_(entry, op, stack, layout_, written(entry, op, stack)),
        momentum_(argument_of(op, stack, {"momentum", "exponential_average_factor"}).toDouble()) {
    const c10::IValue eps = argument_of(op, stack, {"eps", "epsilon"});
    if (!eps.isNone()) eps_ = eps.toDouble();
    if (layout_.reduces()) check_reduction(entry, layout_.input());
    local_ = call_.local("input");
    statistics_ = channel_statistics(entry, layout_, local_);
    saved_ = saved_type(
        input_, {tensor_named(op, stack, "weight"), tensor_named(op, stack, "bias"),
                 tensor_named(op, stack, "running_mean"), tensor_named(op, stack, "running_var")});
  }

  at::Tensor normalized() const {
    // May communicate, so it also runs on a rank that has nothing to normalize.
    const at::ScalarType dtype = computed_type(local_.scalar_type());
    const auto weight = optional(as_type(call_.local("weight"), dtype));
    const auto bias = optional(as_type(call_.local("bias"), dtype));
    at::Tensor out;
    if (local_.numel() == 0 || local_.is_meta()) {
      out = at::empty_like(local_);
    } else {
      out = std::get<0>(at::native_batch_norm(local_, weight, bias, statistics_.mean.to(dtype),
                                              statistics_.var.to(dtype), /*training=*/false, 0,
                                              eps_));
    }
    return wrap_result(out, layout_, input_.suggest_memory_format());
  }
  at::Tensor mean() const { return wrap(statistics_.mean.to(saved_), layout_.channels(saved_)); }
  at::Tensor var() const { return wrap(statistics_.var.to(saved_), layout_.channels(saved_)); }
  at::Tensor invstd() const {
    return wrap((statistics_.var + eps_).rsqrt().to(saved_), layout_.channels(saved_));
  }
  /// Empty, as from kernels that reserve no memory for backward.
  at::Tensor reserve() const {
    const at::Tensor none = at::empty({0}, local_.options().dtype(at::kByte));
    return wrap(none, as_replicated(none, layout_.input().mesh()));
  }

  /// The new running statistics; written in place unless the variant is functional.
  at::Tensor running_mean() const { return update("running_mean", statistics_.mean); }
  at::Tensor running_var() const {
    const double n = layout_.count();
    return update("running_var", statistics_.var * (n / (n - 1)));
  }

 private:
  std::vector<size_t> written(const OpEntry& entry, const c10::OperatorHandle& op,
                              const Stack& stack) const {
    std::vector<size_t> out;
    for (const char* name : {"running_mean", "running_var"}) {
      if (!writes_ || !tensor_named(op, stack, name).defined()) continue;
      out.push_back(static_cast<size_t>(operand_named(entry, op, name)));
    }
    return out;
  }

  at::Tensor update(std::string_view name, const at::Tensor& now) const {
    const at::Tensor before = call_.local(name);
    if (!before.defined()) return {};
    const at::Tensor after = moved_average(before, now, momentum_);
    if (writes_) call_.write(name, after);
    return wrap(after, layout_.channels(after.scalar_type()));
  }

  at::Tensor input_;
  ChannelLayout layout_;
  bool writes_;
  LocalCall call_;
  double momentum_;
  double eps_ = 0;
  at::Tensor local_;
  ChannelStatistics statistics_;
  at::ScalarType saved_ = at::kFloat;
};

/// All variants: (result, mean, invstd), and what some add to it.
bool batch_norm(const OpEntry& entry, const c10::OperatorHandle& op, Stack& stack) {
  if (!takes_forward(entry, op, stack)) return false;
  const Forward call(entry, op, stack);
  const at::Tensor mean = call.running_mean(), var = call.running_var();
  std::vector<at::Tensor> results = {call.normalized(), call.mean(), call.invstd()};
  for (size_t r = results.size(); r < entry.result_alias.size(); ++r) {
    const std::string& name = op.schema().returns()[r].name();
    results.push_back(name == "running_mean_out"  ? mean
                      : name == "running_var_out" ? var
                                                  : call.reserve());
  }
  torch::jit::drop(stack, entry.args.size());
  for (at::Tensor& result : results) stack.emplace_back(std::move(result));
  return true;
}

/// batch_norm_update_stats(input, running_mean?, running_var?, momentum) -> (mean, var)
bool update_statistics(const OpEntry& entry, const c10::OperatorHandle& op, Stack& stack) {
  if (!takes_forward(entry, op, stack)) return false;
  const Forward call(entry, op, stack);
  call.running_mean();
  call.running_var();
  torch::jit::drop(stack, entry.args.size());
  torch::jit::push(stack, call.mean(), call.var());
  return true;
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
bool batch_norm_backward(const OpEntry& entry, const c10::OperatorHandle& op, Stack& stack) {
  const c10::IValue train = argument_of(op, stack, {"train", "update"});
  if (train.isBool() && !train.toBool()) return false;
  const at::Tensor input = tensor_named(op, stack, "input");
  const ShardedMeta* meta = sharded_meta(input);
  if (meta == nullptr || input.dim() < 2 || input.numel() == 0) return false;
  if (meta->sharding().is_replicated() || !all_on(meta->sharding().mesh(), entry, stack)) {
    return false;
  }
  if (has_rule(entry) && is_whole_by_channel(meta->sharding())) return false;
  const ChannelLayout layout(meta->sharding());
  const bool grad_first = op.schema().arguments()[0].name() == "grad_out";
  const LocalCall call(entry, op, stack, layout);
  if (layout.reduces()) check_reduction(entry, layout.input());

  const at::Tensor local = call.local("input");
  const at::Tensor grad = call.local(grad_first ? "grad_out" : "grad_output");
  const at::ScalarType dtype = computed_type(local.scalar_type());
  const at::Tensor mean = call.local("save_mean").to(dtype);
  const bool named_invstd = operand_named(entry, op, "save_invstd") >= 0;
  const at::Tensor invstd = call.local(named_invstd ? "save_invstd" : "save_var").to(dtype);
  const at::Tensor weight = call.local("weight");
  const at::Tensor sums =
      layout.sum_over_ranks(entry, gradient_sums(layout, grad, local, mean, invstd));

  std::vector<bool> wanted = {true, true, true};
  if (const c10::IValue mask = argument_named(op, stack, "output_mask"); mask.isBoolList()) {
    for (size_t i = 0; i < wanted.size(); ++i) wanted[i] = mask.toBoolList()[i];
  }
  at::Tensor d_input, d_weight, d_bias;
  if (wanted[0]) {
    const at::Tensor scale = weight.defined() ? invstd * weight.to(dtype) : invstd;
    const at::Tensor out = local.numel() == 0 ? local
                                              : input_gradient(grad, local, mean, invstd, scale,
                                                               sums / layout.count());
    d_input = wrap_result(out.to(local.scalar_type()), layout, input.suggest_memory_format());
  }
  const at::ScalarType of_weight = weight.defined() ? weight.scalar_type() : dtype;
  if (wanted[1]) d_weight = wrap(sums[1].to(of_weight), layout.channels(of_weight));
  if (wanted[2]) d_bias = wrap(sums[0].to(of_weight), layout.channels(of_weight));
  torch::jit::drop(stack, entry.args.size());
  torch::jit::push(stack, std::move(d_input), std::move(d_weight), std::move(d_bias));
  return true;
}

}  // namespace

void install_batch_norm() {
  for (const char* op :
       {"aten::native_batch_norm", "aten::_native_batch_norm_legit",
        "aten::_native_batch_norm_legit.no_stats", "aten::_native_batch_norm_legit_functional",
        "aten::_batch_norm_with_update", "aten::_batch_norm_with_update_functional",
        "aten::cudnn_batch_norm", "aten::miopen_batch_norm"}) {
    set_decomposition(op, batch_norm);
  }
  set_decomposition("aten::batch_norm_update_stats", update_statistics);
  for (const char* op : {"aten::native_batch_norm_backward", "aten::cudnn_batch_norm_backward",
                         "aten::miopen_batch_norm_backward", "aten::batch_norm_backward"}) {
    set_decomposition(op, batch_norm_backward);
  }
}

}  // namespace tessera::dtensor
