#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>

/// Large blocks of host memory that are used again. The kernel hands out fresh memory page by page,
/// zeroed; for a buffer of some megabytes that takes longer than to fill it from the network. A
/// block that is freed is therefore kept for the next buffer of about its size: at most
/// kMostKeptBytes in all, the longest unused ones go first.
namespace tessera::comm {

inline constexpr size_t kSmallestPooledBytes = 256U << 10;
inline constexpr size_t kMostKeptBytes = 192U << 20;

/// An uninitialised, contiguous CPU tensor: large ones from the pool, small ones from libtorch's
/// allocator. Any thread may free it, at any time.
at::Tensor pooled_empty(at::IntArrayRef sizes, at::ScalarType dtype);

size_t kept_bytes();         ///< free and waiting to be used again
void release_kept_blocks();  ///< gives them back to the system

}  // namespace tessera::comm
