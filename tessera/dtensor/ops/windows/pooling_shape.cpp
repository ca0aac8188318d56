#include "tessera/dtensor/ops/windows/pooling_shape.h"

#include <algorithm>

namespace tessera::dtensor {
namespace {

/// Empty if there are neither one nor `dims` numbers.
std::vector<int64_t> expand_list(std::vector<int64_t> list, int dims) {
  const auto count = static_cast<size_t>(dims);
  if (list.size() == 1) list.resize(count, list[0]);
  if (list.size() != count) list.clear();
  return list;
}

}  // namespace

PoolingArgs::PoolingArgs(int dims, std::vector<int64_t> kernel_size, std::vector<int64_t> strides,
                         std::vector<int64_t> paddings, std::vector<int64_t> dilations, bool ceil)
    : kernel(expand_list(std::move(kernel_size), dims)),
      stride(strides.empty() ? kernel : expand_list(std::move(strides), dims)),
      padding(expand_list(std::move(paddings), dims)),
      dilation(
          expand_list(dilations.empty() ? std::vector<int64_t>{1} : std::move(dilations), dims)),
      ceil_mode(ceil) {}

bool PoolingArgs::are_valid(c10::ArrayRef<int64_t> sizes) const {
  const size_t count = sizes.size();
  if (kernel.size() != count || stride.size() != count || padding.size() != count ||
      dilation.size() != count)
    return false;
  for (size_t d = 0; d < count; ++d) {
    if (kernel[d] <= 0 || stride[d] <= 0 || dilation[d] <= 0 || padding[d] < 0) return false;
    if (padding[d] > (dilation[d] * (kernel[d] - 1) + 1) / 2) return false;
    if (output_size(static_cast<int>(d), sizes[d]) < 1) return false;
  }
  return true;
}

int64_t PoolingArgs::output_size(int dim, int64_t size) const {
  const auto d = static_cast<size_t>(dim);
  const int64_t room = size + 2 * padding[d] - dilation[d] * (kernel[d] - 1) - 1;
  if (room < 0 && !(ceil_mode && room + stride[d] > 0)) return 0;
  const int64_t out = (room + (ceil_mode ? stride[d] - 1 : 0)) / stride[d] + 1;
  // The last window must begin inside of the input or of the padding before it.
  return ceil_mode && (out - 1) * stride[d] >= size + padding[d] ? out - 1 : out;
}

int64_t PoolingArgs::halo(int dim) const {
  const auto d = static_cast<size_t>(dim);
  return std::max<int64_t>(0, dilation[d] * (kernel[d] - 1) + 1 - stride[d]);
}

Interval PoolingArgs::window(int dim, Interval part) const {
  const auto d = static_cast<size_t>(dim);
  return {part.begin * stride[d] - padding[d],
          (part.end - 1) * stride[d] - padding[d] + dilation[d] * (kernel[d] - 1) + 1};
}

int64_t PoolingArgs::count(int dim, int64_t size, int64_t output, bool count_padding) const {
  const auto d = static_cast<size_t>(dim);
  const int64_t begin = output * stride[d] - padding[d];
  const int64_t end = std::min(begin + kernel[d], size + padding[d]);
  if (count_padding) return end - begin;
  // A window of padding only: the sum is 0, and the divisor must not be.
  return std::max<int64_t>(1, std::min(end, size) - std::max<int64_t>(begin, 0));
}

}  // namespace tessera::dtensor
