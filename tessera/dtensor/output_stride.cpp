#include "tessera/dtensor/output_stride.h"

#include "tessera/base/shape.h"

namespace tessera::dtensor {

std::vector<int64_t> output_stride(std::span<const int64_t> shape, c10::MemoryFormat format) {
  const c10::IntArrayRef sizes(shape.data(), shape.size());
  if (format == c10::MemoryFormat::ChannelsLast) return c10::get_channels_last_strides_2d(sizes);
  if (format == c10::MemoryFormat::ChannelsLast3d) return c10::get_channels_last_strides_3d(sizes);
  return contiguous_stride(shape);
}

}  // namespace tessera::dtensor
