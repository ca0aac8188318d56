#pragma once

#include <c10/core/MemoryFormat.h>

#include <cstdint>
#include <span>
#include <vector>

#include "tessera/dtensor/ops/convolution_shape.h"
#include "tessera/sharding/sharding.h"

namespace tessera::dtensor {

/// The role of a mesh axis in a convolution.
enum class Role : uint8_t {
  none,         // everything is replicated
  space,        // shards a spatial dim of input and output
  batch,        // shards the batch of both
  out_channel,  // shards the weight and the output's channels
  in_channel,   // shards the weight and the input's channels: outputs are addends
};

/// The shardings of all tensors of one convolution.
struct Layout {
  std::vector<Role> roles;  // by axis
  Sharding input, weight, bias, output;
  std::vector<int> dims;  // sharded spatial dims, as dims of the tensor
};

/// The layout of a convolution of a spatially sharded input; operands with other shardings must be
/// redistributed to it. `shape` is the output's, `format` its memory format.
Layout lay_out(const Sharding& input, const Sharding& weight, const ConvolutionArgs& args,
               std::span<const int64_t> shape, c10::MemoryFormat format);

std::vector<int64_t> output_stride(std::span<const int64_t> shape, c10::MemoryFormat format);

/// The sharding of the input's gradient: every output channel adds to it.
Sharding input_gradient(const Layout& layout);
/// The sharding of the gradient of the weight or the bias, whose sharding is `as`: ranks with
/// different parts of batch or space hold addends of it.
Sharding weight_gradient(const Layout& layout, const Sharding& as);

}  // namespace tessera::dtensor
