#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "tessera/sharding/local_shape.h"

/// Index arithmetic of convolutions: output sizes, and the input range that an output range depends
/// on.
namespace tessera::dtensor {

struct ConvolutionArgs {
  std::vector<int64_t> stride;  // by spatial dim, like the rest
  std::vector<int64_t> padding;
  std::vector<int64_t> dilation;
  std::vector<int64_t> output_padding;
  bool transposed = false;
  int64_t groups = 1;
};

/// Expands one-element lists to all spatial dims.
void expand_lists(ConvolutionArgs& args, size_t dims);

/// Of the weight, also where there are no input channels, and so no output.
int64_t output_channels(std::span<const int64_t> weight, const ConvolutionArgs& args);

/// Expands lists and returns the output shape. Throws InvalidArgument if the arguments do not match
/// each other or the tensors.
std::vector<int64_t> convolution_shape(std::span<const int64_t> input,
                                       std::span<const int64_t> weight, ConvolutionArgs& args);

/// How a rank computes its range of one output dim: by the same convolution, without padding, of a
/// window of the input, keeping a range of its results.
///
///   [8], kernel 3, padding 1, outputs [4,8):     window [3,9), of which 8 is padding
///   transposed, stride 2, outputs [4,8):         window [1,4), the first output is skipped
struct Window {
  Interval input;      // global indexes; zeros outside of the tensor. Empty: nothing to do
  int64_t skip = 0;    // results to skip at the beginning (transposed only)
  int64_t keep = 0;    // results to keep
  int64_t made = 0;    // results of the convolution of the window
  int64_t beyond = 0;  // output_padding required for that
};

/// For the outputs `part` of a dim with `size` inputs; `dim` counts spatial dims.
Window window_of(const ConvolutionArgs& args, size_t dim, int64_t kernel, int64_t size,
                 Interval part);

}  // namespace tessera::dtensor
