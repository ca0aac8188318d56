#pragma once

#include <ATen/core/Tensor.h>

#include "tessera/dtensor/dispatch/op_entry.h"
#include "tessera/dtensor/lazy.h"

/// Version counters of local tensors. libtorch increments the counter in a kernel above the one
/// that writes; ops on local tensors run below it, and views created there have separate counters.
/// So dispatch counts writes itself: a write to a sharded tensor increments the counter of its
/// local tensor and, if registered, of the owner of the memory.
namespace tessera::dtensor {

/// From now on, every write by an op on a sharded tensor to the memory of `tensor`, including
/// through views, increments the counter of `tensor`. For fully_shard, whose gathered copies depend
/// on the shards.
void count_writes_to_memory(const at::Tensor& tensor);

/// Counts a write to the memory of `local`; no effect on memory that is not registered.
void count_write_to_memory(const at::Tensor& local);

inline void count_write(const at::Tensor& local) {
  c10::TensorImpl& impl = *local.unsafeGetTensorImpl();
  if (!impl.is_inference()) impl.bump_version();
  if (LazyLocal::any()) count_write_to_memory(local);
}

/// Counts a write for each tensor that the op is about to write to.
void count_writes(const OpEntry& entry, const torch::jit::Stack& stack);

}  // namespace tessera::dtensor
