#pragma once

#include "tessera/dtensor/dispatch/op_entry.h"
#include "tessera/dtensor/lazy.h"

/// Which way an op with lazy tensors among its arguments goes: on the unsharded tensors, on the
/// shards, or as a recipe. lazy.h says which op goes which way.
namespace tessera::dtensor {

/// While it lives, a backward that runs on this thread does not count: ops on lazy tensors alone
/// work on the shards. For what a backward calls and is no part of it: a hook with an optimizer.
class OutsideBackward {
 public:
  OutsideBackward();
  ~OutsideBackward();
  OutsideBackward(const OutsideBackward&) = delete;
  OutsideBackward& operator=(const OutsideBackward&) = delete;

 private:
  bool before_;
};

/// Runs the op if a lazy tensor is among its arguments and it must not go the common way.
bool dispatch_lazy(const OpEntry& entry, const c10::OperatorHandle& op, torch::jit::Stack& stack);

/// True if a lazy tensor is among the op's arguments: plain ones beside it are welcome then.
bool takes_lazy(const OpEntry& entry, const torch::jit::Stack& stack);

}  // namespace tessera::dtensor
