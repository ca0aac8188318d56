#pragma once

#include <ATen/core/Tensor.h>

#include "tessera/dtensor/dispatch/op_entry.h"
#include "tessera/dtensor/lazy.h"

/// Version counters of local tensors. libtorch counts writes to a tensor in a kernel above the one
/// that writes; ops on local tensors run below it, and views that are made there have counters of
/// their own. So dispatch counts itself: a write to a sharded tensor counts as one to its local
/// tensor, and as one to the memory behind it, if its owner wants to know.
namespace tessera::dtensor {

/// From now on every write by an op of a sharded tensor to the memory of `tensor`, also through a
/// view, counts as one to `tensor`. For fully_shard, whose gathered copies depend on the shards.
void count_writes_to_memory(const at::Tensor& tensor);

/// A write to the memory behind `local`; no effect on memory that is not watched.
void count_write_to_memory(const at::Tensor& local);

inline void count_write(const at::Tensor& local) {
  c10::TensorImpl& impl = *local.unsafeGetTensorImpl();
  if (!impl.is_inference()) impl.bump_version();
  if (LazyLocal::any()) count_write_to_memory(local);
}

/// All that the op is about to write to.
void count_writes(const OpEntry& entry, const torch::jit::Stack& stack);

}  // namespace tessera::dtensor
