#include "tessera/dtensor/rule_handlers.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/embedding.h>
#include <ATen/ops/embedding_dense_backward.h>
#include <ATen/ops/logical_and.h>
#include <ATen/ops/zeros.h>

#include "tessera/base/errors.h"
#include "tessera/comm/call_site.h"
#include "tessera/dtensor/norm_of_parts.h"
#include "tessera/exec/redistribute.h"
#include "tessera/rules/rule.h"
#include "tessera/sharding/local_shape.h"

namespace tessera::dtensor {
namespace {

using torch::jit::Stack;

/// Norms over a cut dim.
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

/// nll_loss of a mean over a cut batch: losses and weights are summed over the ranks, then divided.
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

/// Global row numbers of a cut table as local ones; those that are elsewhere get `elsewhere`.
at::Tensor local_rows(const at::Tensor& index, const Sharding& table, int64_t elsewhere) {
  at::Tensor out = at::zeros_like(index).fill_(elsewhere);
  int64_t place = 0;
  for (const Interval& part : held_intervals(table, 0, *table.mesh().my_coordinate())) {
    const at::Tensor here = at::logical_and(index.ge(part.begin), index.lt(part.end));
    out = at::where(here, index - (part.begin - place), out);
    place += part.size();
  }
  return out;
}

/// embedding(weight, indices, ...) with the table's rows cut: zeros for rows that are elsewhere.
void masked_embedding(const OpEntry& entry, const c10::OperatorHandle&, const Decision& decision,
                      Stack& stack) {
  const auto args = torch::jit::last(stack, entry.args.size());
  const at::Tensor table = args[0].toTensor();
  const at::Tensor index = args[1].toTensor();
  at::Tensor out;
  if (table.size(0) == 0) {
    std::vector<int64_t> shape(index.sizes().begin(), index.sizes().end());
    shape.push_back(table.size(1));
    out = at::zeros(shape, table.options());
  } else {
    const at::Tensor rows = local_rows(index, decision.operands[0], -1);
    out = at::embedding(table, rows.clamp_min(0));
    out.masked_fill_(rows.lt(0).unsqueeze(-1), 0);
  }
  torch::jit::drop(stack, entry.args.size());
  torch::jit::push(stack, std::move(out));
}

/// Its gradient: contributions to rows that are elsewhere go to one more row, which is left out.
void masked_embedding_backward(const OpEntry& entry, const c10::OperatorHandle&,
                               const Decision& decision, Stack& stack) {
  const auto args = torch::jit::last(stack, entry.args.size());
  const at::Tensor grad = args[0].toTensor();
  const at::Tensor index = args[1].toTensor();
  const int64_t rows = args[2].toInt();  // local by now
  const int64_t padding = args[3].toInt();
  const bool by_frequency = args[4].toBool();
  at::Tensor local = local_rows(index, decision.results[0], rows);
  if (padding >= 0) local.masked_fill_(index.eq(padding), rows);
  at::Tensor out = at::embedding_dense_backward(grad, local, rows + 1, -1, by_frequency);
  torch::jit::drop(stack, entry.args.size());
  torch::jit::push(stack, out.narrow(0, 0, rows));
}

void mask(const OpEntry& entry, const c10::OperatorHandle& op, const Decision& decision,
          Stack& stack) {
  if (entry.name == "aten::embedding") return masked_embedding(entry, op, decision, stack);
  ensure(entry.name == "aten::embedding_dense_backward", "no masked form of this op");
  masked_embedding_backward(entry, op, decision, stack);
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

RuleHandler rule_handler(std::string_view name) {
  if (name == "mask") return mask;
  if (name == "norm") return norm;
  if (name == "nll") return nll;
  if (name == "moments") return moments;
  return nullptr;
}

void enable_rule_handlers() {
  for (const char* name : {"mask", "norm", "nll", "moments"}) rules::enable_handler(name);
}

}  // namespace tessera::dtensor
