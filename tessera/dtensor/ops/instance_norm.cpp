#include "tessera/dtensor/ops/instance_norm.h"

#include <ATen/ops/batch_norm.h>
#include <c10/core/GradMode.h>

#include "tessera/dtensor/dtensor.h"
#include "tessera/dtensor/ops/channel_statistics.h"
#include "tessera/observe/call_site.h"

namespace tessera::dtensor {
namespace {

at::Tensor tensor_at(const c10::IValue& value) {
  return value.isTensor() ? value.toTensor() : at::Tensor();
}

at::Tensor repeated(const at::Tensor& per_channel, int64_t times) {
  return per_channel.defined() ? per_channel.repeat({times}) : per_channel;
}

/// Expands per-channel statistics to each instance, on the ranks that have its elements. The caller
/// of `op` did not write that redistribution: the policy applies to it.
at::Tensor spread_over_instances(std::string_view op, const at::Tensor& running, int64_t instances,
                                 const ChannelLayout& layout) {
  if (!running.defined()) return running;
  const c10::AutoGradMode no_grad(false);
  const comm::CallSite site({.op = op, .implicit = true});
  return redistribute(running.detach().repeat({instances}), layout.channels(running.scalar_type()));
}

/// The mean over instances, placed as `running` unless that is Partial.
at::Tensor average(std::string_view op, const at::Tensor& running, const at::Tensor& by_instance,
                   int64_t instances) {
  if (!running.defined()) return running;
  const c10::AutoGradMode no_grad(false);
  const at::Tensor mean = by_instance.view({instances, running.size(0)}).mean(0);
  const Sharding& to = sharding(running);
  if (to.has_partial()) return mean;  // only a write makes parts of it
  const comm::CallSite site({.op = op, .implicit = true});
  return redistribute(mean, sharding(mean).with_placements(
                                {to.placements().begin(), to.placements().end()}, to.order()));
}

void write(const at::Tensor& running, const at::Tensor& values) {
  if (!running.defined()) return;
  const c10::AutoGradMode no_grad(false);
  running.copy_(values);
}

}  // namespace

/// instance_norm(input, weight?, bias?, running_mean?, running_var?, use_input_stats, momentum,
/// eps, cudnn_enabled)
bool instance_norm(const OpEntry& entry, const c10::OperatorHandle&, Stack& stack) {
  const auto args = torch::jit::last(stack, entry.args.size());
  const at::Tensor input = args[0].toTensor();
  const at::Tensor running_mean = tensor_at(args[3]), running_var = tensor_at(args[4]);
  const bool of_input = args[5].toBool();
  if (!of_input || (!running_mean.defined() && !running_var.defined())) return false;
  if (!is_dtensor(input) || input.dim() < 2 || input.numel() == 0) return false;
  for (const at::Tensor& running : {running_mean, running_var}) {
    if (running.defined() && !is_dtensor(running)) return false;
  }
  const int64_t instances = input.size(0), channels = input.size(1);
  std::vector<int64_t> shape = input.sizes().vec();
  shape[0] = 1;
  shape[1] = instances * channels;
  const at::Tensor as_one = input.contiguous().view(shape);
  const ChannelLayout layout(sharding(as_one));
  const at::Tensor mean = spread_over_instances(entry.name, running_mean, instances, layout);
  const at::Tensor var = spread_over_instances(entry.name, running_var, instances, layout);
  const at::Tensor out = at::batch_norm(
      as_one, repeated(tensor_at(args[1]), instances), repeated(tensor_at(args[2]), instances),
      mean, var, of_input, args[6].toDouble(), args[7].toDouble(), args[8].toBool());
  // Both before either is written: the policy may refuse one.
  const at::Tensor new_mean = average(entry.name, running_mean, mean, instances);
  const at::Tensor new_var = average(entry.name, running_var, var, instances);
  write(running_mean, new_mean);
  write(running_var, new_var);
  const at::Tensor result = out.view(input.sizes());
  torch::jit::drop(stack, entry.args.size());
  torch::jit::push(stack, result);
  return true;
}

}  // namespace tessera::dtensor
