#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>

#include <string_view>

#include "tessera/base/api.h"
#include "tessera/dtensor/dispatch/decide/row_kernel.h"
#include "tessera/rules/rule.h"

/// Sharding support for custom ops. An op unknown to tessera works with sharded tensors as it is: a
/// composite op through the ops it calls, any other on replicated inputs, with a warning. A rule
/// lets it run on shards; a kernel for rows of the rule runs in place of the op where its own
/// kernel on local tensors is not enough.
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
TESSERA_API void register_rule(std::string_view op, std::string_view notation);

/// The same as functions, for what the notation cannot express: `rows` returns the legal placements
/// of a call for one mesh axis, `infer` the global shapes of its results (without it, the op needs
/// a Meta kernel); see rules/rule.h.
TESSERA_API void register_rule(rules::Rule rule);

using dtensor::KernelCall;
using dtensor::RunRow;
using rules::KernelComm;
using rules::KernelRows;

/// Adds the kernel for rows that name it: by the clause `kernel name letters` of a rule, by the
/// clause `kernel name` and the function `rows`, or by Row::kernel. It gets this rank's parts,
/// placed as the row says; what it communicates is declared by `comm`. Runs below autograd.
///
///   register_rule("mylib::scale_rows", "mn, m -> mn ; kernel mylib_by_column n");
///   register_kernel("mylib_by_column", by_column, KernelComm::none);
TESSERA_API void register_kernel(std::string_view name, RunRow kernel,
                                 KernelComm comm = KernelComm::combine, KernelRows rows = {});

}  // namespace tessera
