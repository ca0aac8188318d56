#include "tessera/dtensor/ops/convolution_layout.h"

#include <algorithm>

#include "tessera/base/shape.h"
#include "tessera/sharding/local_shape.h"

namespace tessera::dtensor {
namespace {

/// No rank is left without a channel: libtorch has no convolution of none.
bool cuts_evenly_enough(const Placement& p, int64_t size, int64_t ranks) {
  return p.is_plain_shard() && chunk_interval(size, ranks, ranks - 1).size() > 0;
}

Role role_of(int axis, const Sharding& input, const Sharding& weight, const ConvolutionArgs& args) {
  const Placement& in = input.placement(axis);
  const Placement& of_weight = weight.placement(axis);
  const int64_t ranks = input.mesh().size(axis);
  if (in.is_sharded() && in.dim() >= 2) return Role::space;
  if (in.is_sharded(0)) return Role::batch;
  if (args.groups != 1) return Role::none;
  const int in_dim = in_channel_dim(args);
  const int out_dim = out_channel_dim(args);
  if (in.is_sharded(1)) {
    const bool both = of_weight.is_sharded(in_dim) && of_weight == in.on_dim(in_dim) &&
                      cuts_evenly_enough(in, input.shape()[1], ranks);
    return both ? Role::in_channel : Role::none;
  }
  const bool out =
      of_weight.is_sharded(out_dim) &&
      cuts_evenly_enough(of_weight, weight.shape()[static_cast<size_t>(out_dim)], ranks);
  return out ? Role::out_channel : Role::none;
}

}  // namespace

std::vector<int64_t> output_stride(std::span<const int64_t> shape, c10::MemoryFormat format) {
  const c10::IntArrayRef sizes(shape.data(), shape.size());
  if (format == c10::MemoryFormat::ChannelsLast) return c10::get_channels_last_strides_2d(sizes);
  if (format == c10::MemoryFormat::ChannelsLast3d) return c10::get_channels_last_strides_3d(sizes);
  return contiguous_stride(shape);
}

Layout lay_out(const Sharding& input, const Sharding& weight, const ConvolutionArgs& args,
               std::span<const int64_t> shape, c10::MemoryFormat format) {
  const auto& mesh = input.mesh();
  const auto axes = static_cast<size_t>(mesh.ndim());
  Layout out;
  std::vector<Placement> of_input(axes), of_weight(axes), of_bias(axes), of_output(axes);
  for (size_t a = 0; a < axes; ++a) {
    const Placement& in = input.placement(static_cast<int>(a));
    out.roles.push_back(role_of(static_cast<int>(a), input, weight, args));
    switch (out.roles[a]) {
      case Role::none:
        break;
      case Role::space:
        of_input[a] = in;
        of_output[a] = Shard(in.dim());
        if (std::ranges::find(out.dims, in.dim()) == out.dims.end()) out.dims.push_back(in.dim());
        break;
      case Role::batch:
        of_input[a] = in;
        of_output[a] = in;
        break;
      case Role::out_channel:
        of_weight[a] = Shard(out_channel_dim(args));
        of_bias[a] = Shard(0);
        of_output[a] = Shard(1);
        break;
      case Role::in_channel:
        of_input[a] = Shard(1);
        of_weight[a] = Shard(in_channel_dim(args));
        of_output[a] = Partial();
        break;
    }
  }
  out.input = input.with_placements(of_input, input.order());
  out.weight = weight.with_placements(of_weight, weight.order());
  out.bias = Sharding(mesh, of_bias, {shape[1]}, {.dtype = weight.dtype()});
  out.output = Sharding(
      mesh, of_output, {shape.begin(), shape.end()},
      {.dtype = input.dtype(), .stride = output_stride(shape, format), .order = input.order()});
  return out;
}

namespace {

template <class Is>
Sharding with_addends(const Layout& layout, const Sharding& as, Is is_summed) {
  std::vector<Placement> placements(as.placements().begin(), as.placements().end());
  for (size_t a = 0; a < placements.size(); ++a) {
    if (is_summed(layout.roles[a])) placements[a] = Partial();
  }
  return as.with_placements(std::move(placements), as.order());
}

}  // namespace

Sharding input_gradient(const Layout& layout) {
  return with_addends(layout, layout.input, [](Role role) { return role == Role::out_channel; });
}

Sharding weight_gradient(const Layout& layout, const Sharding& as) {
  return with_addends(layout, as,
                      [](Role role) { return role == Role::space || role == Role::batch; });
}

}  // namespace tessera::dtensor
