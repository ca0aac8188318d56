#pragma once

#include "tessera/dtensor/tensor/copied_memory.h"
#include "tessera/dtensor/tensor/sharded_tensor.h"

/// Tells whether a copy of a sharded tensor is still of its value: the stamps are equal if nothing
/// was written to the tensor since the copy was made. Autograd's counter of the tensor alone does
/// not: writes to `x.data`, to `to_local(x)`, by fused optimizers and to running statistics leave
/// it as it is. All of them change the counter of the local memory (dispatch/write_count.h).
/// Collectives of c10d change it for what was given to note_copied (copied_memory.h).
namespace tessera::dtensor {

struct ValueStamp {
  int64_t version = 0;                  ///< autograd's counter
  int64_t local_version = 0;            ///< of the local tensor, shared by its views
  const c10::TensorImpl* of = nullptr;  ///< the local tensor; `x.data = y` replaces it

  bool operator==(const ValueStamp&) const = default;
};

/// Tensors of inference mode count no writes, nor does the owner of memory that is not libtorch's.
inline bool counts_writes(const at::Tensor& tensor) {
  const at::Tensor& local = sharded_meta(tensor)->local();
  return !tensor.is_inference() && !local.is_inference() && is_allocated_by_torch(local);
}

/// For tensors that count writes.
inline ValueStamp value_stamp(const at::Tensor& tensor) {
  const c10::TensorImpl* local = sharded_meta(tensor)->local().unsafeGetTensorImpl();
  const auto version_of = [](const c10::TensorImpl& impl) {
    return static_cast<int64_t>(impl.version_counter().current_version());
  };
  return {version_of(*tensor.unsafeGetTensorImpl()), version_of(*local), local};
}

}  // namespace tessera::dtensor
