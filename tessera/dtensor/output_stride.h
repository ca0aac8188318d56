#pragma once

#include <c10/core/MemoryFormat.h>

#include <cstdint>
#include <span>
#include <vector>

namespace tessera::dtensor {

/// The strides of a dense tensor in a memory format.
std::vector<int64_t> output_stride(std::span<const int64_t> shape, c10::MemoryFormat format);

}  // namespace tessera::dtensor
