#pragma once

#include <span>

#include "tessera/dtensor/dispatch/dispatch.h"

/// The way down to local tensors and back.
namespace tessera::dtensor {

/// Puts local tensors, redistributed where the decision says so, in place of the sharded arguments
/// on top of the stack.
void localise_args(const OpEntry& entry, const Decision& decision, Stack& stack);

/// Runs what the decision says on the local arguments: the op, another one, or a handler.
void run_local(const OpEntry& entry, const c10::OperatorHandle& op, const Decision& decision,
               Stack& stack);

/// Puts sharded tensors in place of the local results from `base` on; those that alias a written
/// argument become `written`, which holds the entry's written arguments in their order.
void wrap_results(const OpEntry& entry, const Decision& decision, Stack& stack, size_t base,
                  std::span<c10::IValue> written);

/// One of them: the sharded tensor of a local result that aliases no written argument. `index`
/// counts results, lists flattened.
at::Tensor wrap_result(const OpEntry& entry, const Decision& decision, size_t index,
                       at::Tensor local);

/// The same on a rank outside the mesh: it has no part of anything, so nothing runs; the results
/// are there to be passed on.
void leave_out(const OpEntry& entry, const Decision& decision, Stack& stack);

}  // namespace tessera::dtensor
