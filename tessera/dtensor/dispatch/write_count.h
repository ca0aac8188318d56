#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/SmallVector.h>

#include "tessera/dtensor/dispatch/op/op_entry.h"
#include "tessera/dtensor/tensor/lazy.h"
#include "tessera/dtensor/tensor/sharded_tensor.h"

/// Version counters of local tensors. libtorch increments the counter in a kernel above the one
/// that writes; ops on local tensors run below it. So dispatch counts writes itself: a write to a
/// sharded tensor increments the counter of its local tensor, which the local tensors of its views
/// share, and, if registered, of the owner of the memory. Copies of values are valid while that
/// counter stays (dtensor/tensor/value_stamp.h).
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

/// Counts a write to a tensor of a list for autograd, which counts those to single tensors itself:
/// for lists libtorch's foreach kernels do. Its fused optimizers count nothing, so that views of a
/// parameter stay usable.
inline void count_write_of_item(const OpEntry& entry, const at::Tensor& written) {
  if (entry.is_fused || !written.defined() || written.is_inference()) return;
  written.unsafeGetTensorImpl()->bump_version();
}

/// From now on, a write to `local` or to the local tensor of `view` counts for both.
inline void share_write_count(const at::Tensor& local, const at::Tensor& view) {
  const ShardedMeta* meta = sharded_meta(view);
  if (meta == nullptr || meta->is_copy_of_view()) return;
  c10::TensorImpl& viewing = *meta->local().unsafeGetTensorImpl();
  c10::TensorImpl& viewed = *local.unsafeGetTensorImpl();
  if (&viewing == &viewed || viewing.is_inference() || viewed.is_inference()) return;
  viewing.set_version_counter(viewed.version_counter());
}

/// Counts a write for each tensor that an op writes to, before and after the op: what was copied
/// while it ran may be the value before or after the write.
class CountedWrites {
 public:
  CountedWrites(const OpEntry& entry, const torch::jit::Stack& stack);
  ~CountedWrites();
  CountedWrites(const CountedWrites&) = delete;
  CountedWrites& operator=(const CountedWrites&) = delete;

 private:
  c10::SmallVector<at::Tensor, 4> locals_;
};

}  // namespace tessera::dtensor
