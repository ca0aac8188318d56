#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>

#include <functional>
#include <string_view>

#include "tessera/rules/rule.h"

/// Sharding support for custom ops. An op unknown to tessera works with sharded tensors as it is: a
/// composite op through the ops it calls, any other on replicated inputs, with a warning. A rule
/// lets it run on shards; a handler gives full control.
///
///   TORCH_LIBRARY(mylib, m) { m.def("scale_rows(Tensor x, Tensor by) -> Tensor"); }
///   TORCH_LIBRARY_IMPL(mylib, CPU, m) { m.impl("scale_rows", scale_rows_cpu); }
///
///   tessera::register_rule("mylib::scale_rows", "mn, m -> mn ; linear 0 ; linear 1");
///
/// May be called before or after the op's definition, once, before the op is used with sharded
/// tensors. See docs/own_ops.md.
namespace tessera {

/// Adds a rule in the notation of docs/rule_notation.md, or replaces the existing one. `op` is
/// "mylib::op", or with its overload "mylib::op.out". Throws InvalidArgument for invalid notation.
void register_rule(std::string_view op, std::string_view notation);

/// The same as functions, for what the notation cannot express: `rows` returns the legal placements
/// of a call for one mesh axis, `infer` the global shapes of its results (without it, the op needs
/// a Meta kernel); see rules/rule.h.
void register_rule(rules::Rule rule);

/// Runs an op on sharded tensors. The arguments are on top of the stack. Returns true after
/// replacing them by the results, or false to fall back to the rule or replication. Runs below
/// autograd: to_local, from_local and redistribute (dtensor.h) record nothing.
using OpHandler = std::function<bool(const c10::OperatorHandle& op, torch::jit::Stack& stack)>;

void register_handler(std::string_view op, OpHandler handler);

}  // namespace tessera
