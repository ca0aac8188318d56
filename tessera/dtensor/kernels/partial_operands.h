#pragma once

#include <memory>

#include "tessera/dtensor/dispatch/op/operands.h"
#include "tessera/rules/tables/partial_use.h"

/// Partial operands of ops, reduced above autograd (use_kernel.h). An op that needs another
/// sharding of one gets a copy that is made once (dtensor/redistribute_once.h); one that accepts it
/// as it is keeps it.
namespace tessera::dtensor {

/// An op as it uses its operands; made once per thread.
struct UsedOp {
  std::shared_ptr<const OpEntry> entry;
  rules::PartialUse use = rules::PartialUse::by_rows;
  bool keeps_operands = false;  ///< made of ops that arrive here themselves, or a view
};
const UsedOp& used_op(const c10::OperatorHandle& op);

/// Redistributes the Partial operands on the stack that the op needs otherwise, and uses kept
/// copies of the others.
void reduce_operands(const UsedOp& used, const c10::OperatorHandle& op, Stack& stack);

/// Replaces one of operands_of(entry, stack), in a copy of its list if it is in one.
void replace_operand(const OpEntry& entry, Stack& stack, size_t operand, const at::Tensor& by);

bool is_partial(const at::Tensor& tensor);
/// Whether this thread runs a backward.
bool in_backward();
/// Below autograd nothing done here would be recorded. Inference mode has no autograd at all.
bool is_below_autograd();

}  // namespace tessera::dtensor
