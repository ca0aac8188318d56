#include "tessera/dtensor/ops/channel_statistics.h"

#include <ATen/ops/batch_norm_update_stats.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/zeros.h>

#include "tessera/dtensor/ops/reductions.h"

namespace tessera::dtensor {
namespace {

constexpr int kChannels = 1;

/// A Partial is reduced to shards of the batch, which communicates half as much as an all_reduce;
/// if the batch is too small for that, to shards of the channels.
Placement reduced_placement(const Sharding& input, int axis) {
  for (const int dim : {0, kChannels}) {
    int64_t parts = input.mesh().size(axis);
    for (const int other : input.axes_of_dim(dim)) parts *= input.mesh().size(other);
    if (input.shape()[static_cast<size_t>(dim)] >= parts) return Shard(dim);
  }
  return Replicate();
}

Sharding reduced(Sharding input) {
  for (int axis = 0; axis < input.mesh().ndim(); ++axis) {
    if (input.placement(axis).is_partial()) {
      input = input.with(axis, reduced_placement(input, axis));
    }
  }
  return input;
}

double elements_of_a_channel(std::span<const int64_t> shape) {
  double out = 1;
  for (size_t dim = 0; dim < shape.size(); ++dim) {
    if (dim != kChannels) out *= static_cast<double>(shape[dim]);
  }
  return out;
}

/// Mean and variance of the local elements, [2, channels].
at::Tensor local_moments(const ChannelLayout& layout, const at::Tensor& local) {
  const auto doubles = local.options().dtype(at::kDouble);
  const int64_t channels = layout.local_channels();
  if (local.numel() == 0 || local.is_meta()) return at::zeros({2, channels}, doubles);
  // Passing float32 running statistics makes the kernel return results of that dtype.
  at::Tensor unused_mean, unused_var;
  if (at::isReducedFloatingType(local.scalar_type())) {
    unused_mean = at::zeros({channels}, local.options().dtype(at::kFloat));
    unused_var = at::ones({channels}, local.options().dtype(at::kFloat));
  }
  const auto [mean, var] =
      at::batch_norm_update_stats(local, unused_mean, unused_var, /*momentum=*/0);
  return at::stack({mean.to(at::kDouble), var.to(at::kDouble)});
}

}  // namespace

ChannelLayout::ChannelLayout(const Sharding& input)
    : input_(reduced(input)),
      count_(elements_of_a_channel(input_.shape())),
      local_count_(elements_of_a_channel(input_.local_shape())) {
  for (int axis = 0; axis < input_.mesh().ndim(); ++axis) {
    const Placement& p = input_.placement(axis);
    reduces_ |= p.is_sharded() && p.dim() != kChannels && input_.mesh().size(axis) > 1;
  }
}

Sharding ChannelLayout::channels(at::ScalarType dtype) const {
  std::vector<Placement> placements(static_cast<size_t>(input_.mesh().ndim()));
  for (size_t axis = 0; axis < placements.size(); ++axis) {
    const Placement& p = input_.placement(static_cast<int>(axis));
    if (p.is_sharded(kChannels)) placements[axis] = p.on_dim(0);
  }
  return Sharding(input_.mesh(), std::move(placements), {input_.shape()[kChannels]},
                  {.dtype = static_cast<DType>(dtype), .order = input_.order()});
}

at::Tensor ChannelLayout::sum_over_ranks(at::Tensor numbers) const {
  if (!reduces_ || !input_.mesh().contains_me()) return numbers;
  std::vector<int> axes;
  for (const int axis : sharded_axes(input_)) {
    if (!input_.placement(axis).is_sharded(kChannels)) axes.push_back(axis);
  }
  return reduce_over_axes(std::move(numbers), input_.mesh(), axes, ReduceOp::sum);
}

ChannelStatistics channel_statistics(const ChannelLayout& layout, const at::Tensor& local) {
  const at::Tensor moments = local_moments(layout, local);
  if (!layout.reduces()) return {moments[0], moments[1]};
  at::Tensor shift;
  at::Tensor away = moments[0];
  const double share = layout.local_count() / layout.count();
  if (local.scalar_type() == at::kDouble) {
    shift = layout.sum_over_ranks((moments[0] * share).unsqueeze(0))[0];
    away = moments[0] - shift;
  }
  const at::Tensor sums =
      layout.sum_over_ranks(at::stack({away, moments[1] + away * away}).mul_(share));
  const at::Tensor var = (sums[1] - sums[0] * sums[0]).clamp_min_(0);
  return {shift.defined() ? sums[0] + shift : sums[0], var};
}

}  // namespace tessera::dtensor
