#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>

#include <functional>
#include <span>
#include <string_view>
#include <utility>

#include "tessera/base/api.h"
#include "tessera/rules/rule.h"

/// Kernels of rows (rules::Row::kernel): what runs on the local tensors where "the same op on local
/// tensors" is not enough. The rule of an op lists the rows that a kernel makes possible, and the
/// kernel of a call is looked up by the rows that were chosen for it, so a kernel neither decides
/// whether it applies nor moves operands, and the policy has been checked before it runs.
///
///   aten::cumsum, rule "* -> * ; whole $dim ; kernel cumsum ; linear 0", x 8x4096 S1 over tp=4
///     chosen   S1 -> S1 by 'cumsum'
///     call     operands {tp=4 : S1 : 8x4096}, results {the same}, stack: x of 8x1024, dim, dtype
///
/// Those of the library are in ops/, a program's own come by register_kernel
/// (dtensor/kernels/own_ops.h).
namespace tessera::dtensor {

/// One call of a row's kernel on this rank.
struct TESSERA_API KernelCall {
  const c10::OperatorHandle& op;
  std::string_view name;               ///< of the op: "aten::cumsum.out"
  std::span<const Sharding> operands;  ///< of the tensors among the arguments, lists flattened
  std::span<const Sharding> results;   ///< as which the results will be wrapped
  torch::jit::Stack& stack;            ///< the arguments are on top, tensors as local parts

  /// The arguments in the order of the schema.
  std::span<c10::IValue> args() const;
  /// The argument of this name; None if the op has none.
  c10::IValue arg(std::string_view of_name) const;
  /// Undefined for None.
  at::Tensor tensor(std::string_view of_name) const;

  /// Replaces the arguments by the local results. For in-place and out= forms too: they are copied
  /// into the tensors that the op writes to.
  template <typename... Results>
  void give(Results&&... results_) const {
    torch::jit::drop(stack, op.schema().arguments().size());
    torch::jit::push(stack, std::forward<Results>(results_)...);
  }
};

using RunRow = std::function<void(const KernelCall& call)>;

/// Adds a kernel, or replaces one; its rows are offered from now on. Collectives in it are
/// attributed to the op, as implicit ones if it combines.
TESSERA_API void add_row_kernel(std::string_view name, RunRow run,
                                rules::KernelComm comm = rules::KernelComm::combine,
                                rules::KernelRows rows = {});

/// nullptr if there is none. Never invalidated.
TESSERA_API const RunRow* find_row_kernel(std::string_view name);

}  // namespace tessera::dtensor
