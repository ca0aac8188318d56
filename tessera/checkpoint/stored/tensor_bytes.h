#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <functional>
#include <span>

namespace tessera::checkpoint {

/// Calls the sink with the elements of a plain tensor in row-major order, in parts that stay in a
/// processor's cache while checksums are computed. Contiguous memory of the CPU is given as it is;
/// anything else is copied, at most kBounce bytes at a time.
void visit_bytes(const at::Tensor& tensor,
                 const std::function<void(std::span<const std::byte>)>& sink);

inline constexpr int64_t kBounce = int64_t{16} << 20;

}  // namespace tessera::checkpoint
