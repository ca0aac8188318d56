#pragma once

#include <string_view>

#include "tessera/dtensor/dispatch/decision.h"
#include "tessera/dtensor/dispatch/op_entry.h"

/// The library's handlers for rows of rules (rules::Row::handler): operations on local tensors
/// beyond the op itself.
namespace tessera::dtensor {

/// `moments`: variance over a sharded dim; in moments.cpp.
void moments(const OpEntry& entry, const c10::OperatorHandle& op, const Decision& decision,
             std::vector<c10::IValue>& stack);

/// `mask`: look-ups and their gradients along a sharded dim; in masked_rows.cpp.
void mask(const OpEntry& entry, const c10::OperatorHandle& op, const Decision& decision,
          std::vector<c10::IValue>& stack);

/// Reduces a local result over the axes that shard what the op sums over: those where the first
/// operand is sharded and the result is not.
at::Tensor reduce_cut_axes(const OpEntry& entry, const Decision& decision, at::Tensor local,
                           ReduceOp op);

/// The argument of this name on the stack; None if the op has none.
c10::IValue argument_named(const c10::OperatorHandle& op, const std::vector<c10::IValue>& stack,
                           std::string_view name);

/// Installs all of them (dispatch/rule_handler.h).
void install_rule_handlers();

}  // namespace tessera::dtensor
