#include "tessera/dtensor/ops/windows/convolution_shape.h"

#include <algorithm>

#include "tessera/base/errors.h"

namespace tessera::dtensor {
namespace {

int64_t floor_div(int64_t a, int64_t b) { return a >= 0 ? a / b : -((-a + b - 1) / b); }
int64_t ceil_div(int64_t a, int64_t b) { return -floor_div(-a, b); }

void expand_list(std::vector<int64_t>& values, size_t dims, const char* name) {
  if (values.size() == 1) values.resize(dims, values[0]);
  require(values.size() == dims, "convolution: ", values.size(), " values of ", name, " for ", dims,
          " spatial dims");
}

void check_channels(std::span<const int64_t> input, std::span<const int64_t> weight,
                    const ConvolutionArgs& args) {
  const int64_t expects = args.transposed ? weight[0] : weight[1] * args.groups;
  require(args.groups > 0 && weight[0] % args.groups == 0 && input[1] == expects,
          "convolution: an input of ", input[1], " channels, a weight ", shape_text(weight),
          " for ", expects, " in ", args.groups, " groups");
  require(weight[0] >= args.groups, "convolution: a weight ", shape_text(weight),
          " of fewer filters than groups");
}

/// Without images or without channels libtorch computes nothing, and accepts any kernel; else it
/// needs elements of both. Its own errors name the part of a rank, and not all ranks have them.
void check_elements(std::span<const int64_t> input, std::span<const int64_t> weight) {
  if (input[1] == 0) return;
  const auto is_empty = [](int64_t size) { return size == 0; };
  require(std::ranges::none_of(weight, is_empty), "convolution: a weight ", shape_text(weight),
          " without elements");
  require(input[0] == 0 || std::ranges::none_of(input, is_empty), "convolution: an input ",
          shape_text(input), " with images and channels, but without elements");
}

}  // namespace

void expand_lists(ConvolutionArgs& args, size_t dims) {
  expand_list(args.stride, dims, "stride");
  expand_list(args.padding, dims, "padding");
  expand_list(args.dilation, dims, "dilation");
  expand_list(args.output_padding, dims, "output_padding");
}

int64_t output_channels(std::span<const int64_t> weight, const ConvolutionArgs& args) {
  return args.transposed ? weight[1] * args.groups : weight[0];
}

std::vector<int64_t> convolution_shape(std::span<const int64_t> input,
                                       std::span<const int64_t> weight, ConvolutionArgs& args) {
  require(input.size() >= 3 && input.size() == weight.size(), "convolution of ", shape_text(input),
          " with a weight ", shape_text(weight),
          ": both need batch or channels and the same spatial dims");
  const size_t dims = input.size() - 2;
  expand_lists(args, dims);
  check_channels(input, weight, args);
  check_elements(input, weight);
  // libtorch's kernels return no output channels if there are no input channels.
  const bool is_nothing = input[0] == 0 || input[1] == 0;
  std::vector<int64_t> out = {input[0], input[1] == 0 ? 0 : output_channels(weight, args)};
  for (size_t d = 0; d < dims; ++d) {
    const int64_t stride = args.stride[d];
    const int64_t reach = args.dilation[d] * (weight[2 + d] - 1);
    require(stride > 0 && args.dilation[d] > 0 && args.padding[d] >= 0, "convolution: stride ",
            stride, ", dilation ", args.dilation[d], ", padding ", args.padding[d],
            " in spatial dim ", d);
    int64_t size = 0;
    int64_t least = 1;
    if (args.transposed) {
      if (is_nothing) least = 0;
      require(args.output_padding[d] >= 0 &&
                  args.output_padding[d] < std::max(stride, args.dilation[d]),
              "convolution: output_padding ", args.output_padding[d], " in spatial dim ", d,
              " must be below stride or dilation");
      size = (input[2 + d] - 1) * stride - 2 * args.padding[d] + reach + args.output_padding[d] + 1;
    } else {
      const int64_t room = input[2 + d] + 2 * args.padding[d] - reach - 1;
      size = room < 0 ? 0 : room / stride + 1;
    }
    require(size >= least, "convolution: nothing is left of spatial dim ", d, " of ",
            shape_text(input), " under a kernel ", shape_text(weight.subspan(2)), " with padding ",
            args.padding[d]);
    out.push_back(size);
  }
  return out;
}

Window window_of(const ConvolutionArgs& args, size_t dim, int64_t kernel, int64_t size,
                 Interval part) {
  if (part.size() <= 0) return {};
  const int64_t stride = args.stride[dim];
  const int64_t pad = args.padding[dim];
  const int64_t reach = args.dilation[dim] * (kernel - 1);
  const int64_t count = part.size();
  if (!args.transposed) {
    return {.input = {part.begin * stride - pad, (part.end - 1) * stride - pad + reach + 1},
            .keep = count,
            .made = count};
  }
  // Input i adds to outputs i * stride - pad + [0, reach]. The window starts no later than the
  // first output, so that the results begin at or before it; outputs without any input are covered
  // by output_padding.
  const int64_t first = std::min({std::max<int64_t>(0, ceil_div(part.begin + pad - reach, stride)),
                                  floor_div(part.begin + pad, stride), size - 1});
  const int64_t last = std::min(floor_div(part.end - 1 + pad, stride), size - 1);
  const int64_t skip = part.begin + pad - first * stride;
  const int64_t natural = (last - first) * stride + reach + 1;
  const int64_t made = std::max(natural, skip + count);
  return {.input = {first, last + 1},
          .skip = skip,
          .keep = count,
          .made = made,
          .beyond = made - natural};
}

}  // namespace tessera::dtensor
