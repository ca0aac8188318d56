#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>

/// A pool of large blocks of host memory. The kernel provides fresh memory page by page, zeroed,
/// which for a buffer of some megabytes takes longer than filling it from the network. So a freed
/// block is kept for the next buffer of about its size: at most kMostKeptBytes in total, least
/// recently used blocks are freed first.
namespace tessera::comm {

inline constexpr size_t kSmallestPooledBytes = 256U << 10;
inline constexpr size_t kMostKeptBytes = 192U << 20;

/// An uninitialized, contiguous CPU tensor: large ones from the pool, small ones from libtorch's
/// allocator. May be freed on any thread, at any time.
at::Tensor pooled_empty(at::IntArrayRef sizes, at::ScalarType dtype);

size_t kept_bytes();         ///< free, kept for reuse
void release_kept_blocks();  ///< returns them to the system

}  // namespace tessera::comm
