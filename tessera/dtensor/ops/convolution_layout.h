#pragma once

#include <c10/core/MemoryFormat.h>

#include <cstdint>
#include <span>
#include <vector>

#include "tessera/dtensor/ops/convolution_shape.h"
#include "tessera/sharding/sharding.h"

namespace tessera::dtensor {

/// What a mesh axis does in a convolution.
enum class Role : uint8_t {
  none,         // everything is replicated
  space,        // cuts a spatial dim of input and output
  batch,        // cuts the batch of both
  out_channel,  // cuts the weight and the output's channels
  in_channel,   // cuts the weight and the input's channels: outputs are addends
};

/// How all tensors of one convolution lie.
struct Layout {
  std::vector<Role> roles;  // by axis
  Sharding input, weight, bias, output;
  std::vector<int> dims;  // spatial dims that are cut, as dims of the tensor
};

/// How a convolution of an input that is cut in space is done: what lies otherwise must be moved
/// first. `shape` is the output's, `format` how it lies in memory.
Layout lay_out(const Sharding& input, const Sharding& weight, const ConvolutionArgs& args,
               std::span<const int64_t> shape, c10::MemoryFormat format);

std::vector<int64_t> output_stride(std::span<const int64_t> shape, c10::MemoryFormat format);

/// How the input's gradient lies: every output channel adds to it.
Sharding input_gradient(const Layout& layout);
/// How the gradient of the weight or the bias lies, which is placed `as`: ranks that saw different
/// parts of batch or space have addends of it.
Sharding weight_gradient(const Layout& layout, const Sharding& as);

}  // namespace tessera::dtensor
