#pragma once

#include <ATen/core/Tensor.h>

/// Local memory of which copies are kept (kept_copies.h, kept_gathers.h), for writes that increment
/// no version counter: collectives of c10d write to plain tensors that share it, such as what
/// to_local returned, and their schemas do not say so.
///
///   q = linear(x, wq)                  x is gathered; note_copied(local part of x)
///   dist.broadcast(to_local(x), 0)     count_write_to_copied: the gathered copy is outdated
///
/// Memory that libtorch did not allocate has another writer altogether (numpy, DLPack), so nothing
/// is kept of it.
namespace tessera::dtensor {

/// From now on, count_write_to_copied increments the counter of `local` for writes to its storage.
void note_copied(const at::Tensor& local);

/// Counts a write to the storage of `written`; no effect unless copies of it were noted.
void count_write_to_copied(const at::Tensor& written);

/// Whether the memory of `local` is of libtorch's allocator for its device.
bool is_allocated_by_torch(const at::Tensor& local);

}  // namespace tessera::dtensor
