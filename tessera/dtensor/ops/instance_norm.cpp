#include "tessera/dtensor/ops/instance_norm.h"

#include <ATen/ops/batch_norm.h>
#include <c10/core/GradMode.h>

#include "tessera/dtensor/dtensor.h"
#include "tessera/dtensor/ops/channel_statistics.h"

namespace tessera::dtensor {
namespace {

at::Tensor tensor_at(const c10::IValue& value) {
  return value.isTensor() ? value.toTensor() : at::Tensor();
}

at::Tensor repeated(const at::Tensor& per_channel, int64_t times) {
  return per_channel.defined() ? per_channel.repeat({times}) : per_channel;
}

/// Expands per-channel statistics to each instance, on the ranks that have its elements.
at::Tensor spread_over_instances(const at::Tensor& running, int64_t instances,
                                 const ChannelLayout& layout) {
  if (!running.defined()) return running;
  const c10::AutoGradMode no_grad(false);
  return redistribute(running.detach().repeat({instances}), layout.channels(running.scalar_type()));
}

void average_into(const at::Tensor& running, const at::Tensor& by_instance, int64_t instances) {
  if (!running.defined()) return;
  const c10::AutoGradMode no_grad(false);
  running.copy_(by_instance.view({instances, running.size(0)}).mean(0));
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
  const at::Tensor mean = spread_over_instances(running_mean, instances, layout);
  const at::Tensor var = spread_over_instances(running_var, instances, layout);
  const at::Tensor out = at::batch_norm(
      as_one, repeated(tensor_at(args[1]), instances), repeated(tensor_at(args[2]), instances),
      mean, var, of_input, args[6].toDouble(), args[7].toDouble(), args[8].toBool());
  average_into(running_mean, mean, instances);
  average_into(running_var, var, instances);
  const at::Tensor result = out.view(input.sizes());
  torch::jit::drop(stack, entry.args.size());
  torch::jit::push(stack, result);
  return true;
}

}  // namespace tessera::dtensor
