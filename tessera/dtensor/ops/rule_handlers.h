#pragma once

#include <string_view>

#include "tessera/dtensor/dispatch/decision.h"
#include "tessera/dtensor/dispatch/op_entry.h"

/// What rows of rules name as their handler (rules::Row::handler): an op on local tensors that is
/// more than the op itself.
namespace tessera::dtensor {

/// `moments`: variance over a cut dim; in moments.cpp.
void moments(const OpEntry& entry, const c10::OperatorHandle& op, const Decision& decision,
             std::vector<c10::IValue>& stack);

/// `mask`: look-ups and their gradients along a cut dim; in masked_rows.cpp.
void mask(const OpEntry& entry, const c10::OperatorHandle& op, const Decision& decision,
          std::vector<c10::IValue>& stack);

/// Reduces a local result over the axes that cut what the op sums over: those where the first
/// operand is cut and the result is whole.
at::Tensor reduce_cut_axes(const OpEntry& entry, const Decision& decision, at::Tensor local,
                           ReduceOp op);

/// The argument of this name on the stack; none if the op has none.
c10::IValue argument_named(const c10::OperatorHandle& op, const std::vector<c10::IValue>& stack,
                           std::string_view name);

/// Sets all of them (dispatch/rule_handler.h).
void install_rule_handlers();

}  // namespace tessera::dtensor
