#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "tessera/sharding/local_shape.h"

/// The arithmetic of convolutions: output sizes, and which part of the input a part of the output
/// is made of.
namespace tessera::dtensor {

struct ConvolutionArgs {
  std::vector<int64_t> stride;  // by spatial dim, as the rest
  std::vector<int64_t> padding;
  std::vector<int64_t> dilation;
  std::vector<int64_t> output_padding;
  bool transposed = false;
  int64_t groups = 1;
};

/// Which dim of the weight is which: `oiK..`, transposed `ioK..`.
inline int in_channel_dim(const ConvolutionArgs& args) { return args.transposed ? 0 : 1; }
inline int out_channel_dim(const ConvolutionArgs& args) { return args.transposed ? 1 : 0; }

/// Lists of one number stand for that number in every spatial dim. Throws InvalidArgument where the
/// arguments fit neither each other nor the tensors.
std::vector<int64_t> convolution_shape(std::span<const int64_t> input,
                                       std::span<const int64_t> weight, ConvolutionArgs& args);

/// How a rank makes its stretch of one dim of the output: by the same convolution, without padding,
/// of a window of the input, of whose results it keeps a stretch.
///
///   [8], kernel 3, padding 1, outputs [4,8):     window [3,9), of which 8 is padding
///   transposed, stride 2, outputs [4,8):         window [1,4), the first output is skipped
struct Window {
  Interval input;      // global indexes; outside of the tensor: zeros. Empty: nothing to do
  int64_t skip = 0;    // results before the first that counts (transposed only)
  int64_t keep = 0;    // results that count
  int64_t made = 0;    // results of the convolution of the window
  int64_t beyond = 0;  // output_padding that it needs for that
};

/// For outputs `part` of a dim of `size` inputs; `dim` counts spatial dims.
Window window_of(const ConvolutionArgs& args, size_t dim, int64_t kernel, int64_t size,
                 Interval part);

}  // namespace tessera::dtensor
