#include "tessera/dtensor/ops/rule_handlers.h"

#include <ATen/TensorOperators.h>

#include "tessera/base/errors.h"
#include "tessera/dtensor/dispatch/rule_handler.h"
#include "tessera/dtensor/ops/norm_of_parts.h"
#include "tessera/exec/redistribute.h"
#include "tessera/observe/call_site.h"

namespace tessera::dtensor {
namespace {

using torch::jit::Stack;

/// Norms over a sharded dim.
void norm(const OpEntry& entry, const c10::OperatorHandle& op, const Decision& decision,
          Stack& stack) {
  const at::Tensor self = stack[stack.size() - entry.args.size()].toTensor();
  c10::IValue order = argument_named(op, stack, "ord");
  if (order.isNone()) order = argument_named(op, stack, "p");
  const NormOfParts norm{order.isNone() ? 2 : order.toScalar().toDouble()};
  const c10::IValue dims = argument_named(op, stack, "dim");
  const c10::IValue keep = argument_named(op, stack, "keepdim");
  const auto result = static_cast<at::ScalarType>(decision.results[0].dtype());
  const auto shape = decision.results[0].local_shape();
  NormOfParts::Over over{.keepdim = keep.isBool() && keep.toBool(),
                         .shape = at::IntArrayRef(shape.data(), shape.size())};
  std::vector<int64_t> listed;
  if (dims.isIntList()) listed = dims.toIntVector();
  if (!listed.empty()) over.dims = listed;
  const at::Tensor powers = norm.of_part(self, result, over);
  const at::Tensor reduced = reduce_cut_axes(entry, decision, powers, norm.reduction());
  torch::jit::drop(stack, entry.args.size());
  torch::jit::push(stack, norm.root(reduced).to(result));
}

/// nll_loss with mean reduction over a sharded batch: losses and weights are summed over the ranks,
/// then divided.
void nll(const OpEntry& entry, const c10::OperatorHandle& op, const Decision& decision,
         Stack& stack) {
  constexpr int64_t kSum = 2;
  const size_t base = stack.size() - entry.args.size();
  const auto& arguments = op.schema().arguments();
  for (size_t i = 0; i < arguments.size(); ++i) {
    if (arguments[i].name() == "reduction") stack[base + i] = kSum;
  }
  op.callBoxed(&stack);
  at::Tensor weight = torch::jit::pop(stack).toTensor();
  at::Tensor loss = torch::jit::pop(stack).toTensor();
  weight = reduce_cut_axes(entry, decision, weight, ReduceOp::sum);
  loss = reduce_cut_axes(entry, decision, loss, ReduceOp::sum);
  torch::jit::push(stack, loss / weight, weight);
}

}  // namespace

at::Tensor reduce_cut_axes(const OpEntry& entry, const Decision& decision, at::Tensor local,
                           ReduceOp op) {
  const Sharding& operand = decision.operands[0];
  Sharding to = decision.results[0].with_dtype(static_cast<DType>(local.scalar_type()));
  Sharding from = to;
  for (int axis = 0; axis < to.mesh().ndim(); ++axis) {
    if (operand.placement(axis).is_sharded() && to.placement(axis).is_replicate()) {
      from = from.with(axis, Partial(op));
    }
  }
  const comm::CallSite site({.op = entry.name, .implicit = true});
  return exec::redistribute(local, from, to, {.may_alias = true, .consume = true});
}

c10::IValue argument_named(const c10::OperatorHandle& op, const Stack& stack,
                           std::string_view name) {
  const auto& arguments = op.schema().arguments();
  const size_t base = stack.size() - arguments.size();
  for (size_t i = 0; i < arguments.size(); ++i) {
    if (arguments[i].name() == name) return stack[base + i];
  }
  return {};
}

void install_rule_handlers() {
  set_rule_handler("mask", mask);
  set_rule_handler("norm", norm);
  set_rule_handler("nll", nll);
  set_rule_handler("moments", moments);
}

}  // namespace tessera::dtensor
