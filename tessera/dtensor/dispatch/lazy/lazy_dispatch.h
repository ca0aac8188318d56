#pragma once

#include "tessera/dtensor/dispatch/op/op_entry.h"
#include "tessera/dtensor/tensor/lazy.h"

/// Routes an op with lazy tensors among its arguments: to the unsharded tensors, to the shards, or
/// to a recipe. The routing rules are in dtensor/tensor/lazy.h.
namespace tessera::dtensor {

/// While it is alive, a backward on this thread is ignored: ops whose tensors are all lazy compute
/// on the shards. For code called from a backward that is not part of it, such as a hook that steps
/// an optimizer.
class OutsideBackward {
 public:
  OutsideBackward();
  ~OutsideBackward();
  OutsideBackward(const OutsideBackward&) = delete;
  OutsideBackward& operator=(const OutsideBackward&) = delete;

 private:
  bool before_;
};

/// Whether this thread runs a backward, outside of any OutsideBackward.
bool runs_backward();

/// Runs the op if its arguments include a lazy tensor that the common path cannot handle. Returns
/// whether it did.
bool dispatch_lazy(const OpEntry& entry, const c10::OperatorHandle& op, torch::jit::Stack& stack);

/// Whether a lazy tensor is among the op's arguments; plain tensors are then allowed.
bool takes_lazy(const OpEntry& entry, const torch::jit::Stack& stack);

}  // namespace tessera::dtensor
