#pragma once

#include <span>

#include "tessera/dtensor/dispatch/dispatch.h"

/// Conversion of a call to local tensors, and of its results back.
namespace tessera::dtensor {

/// Replaces the sharded arguments on top of the stack by local tensors, redistributed if the
/// decision requires it.
void to_local_args(const OpEntry& entry, const Decision& decision, Stack& stack);

/// Runs the op, its replacement or the kernel of its rows on the local arguments, as decided.
void run_local(const OpEntry& entry, const c10::OperatorHandle& op, const Decision& decision,
               Stack& stack);

/// Replaces the local results from `base` on by sharded tensors. Results that alias a written
/// argument become that one; `written` holds the entry's written arguments in their order.
void wrap_results(const OpEntry& entry, const Decision& decision, Stack& stack, size_t base,
                  std::span<c10::IValue> written);

/// One of them: the sharded tensor for a local result that aliases no written argument. `index`
/// counts results, lists flattened.
at::Tensor wrap_result(const OpEntry& entry, const Decision& decision, size_t index,
                       at::Tensor local);

}  // namespace tessera::dtensor
