#include "tessera/dtensor/dispatch/local_call.h"

#include <ATen/core/List.h>

#include <algorithm>

#include "tessera/base/errors.h"
#include "tessera/dtensor/dispatch/decide/row_kernel.h"
#include "tessera/dtensor/tensor/kept_gathers.h"
#include "tessera/dtensor/tensor/layout.h"
#include "tessera/dtensor/tensor/overlap.h"
#include "tessera/exec/redistribute.h"
#include "tessera/observe/call_site.h"

namespace tessera::dtensor {
namespace {

/// The local tensor with which an operand enters the op.
at::Tensor local_operand(const OpEntry& entry, const Decision& decision, size_t index,
                         const at::Tensor& tensor) {
  const ShardedMeta* meta = sharded_meta(tensor);
  if (!decision.moves || index >= decision.operands.size() || !tensor.defined()) {
    return meta != nullptr ? meta->local() : tensor;
  }
  const Sharding& target = decision.operands[index];
  if (std::ranges::find(decision.write_back, index) != decision.write_back.end()) {
    // out= arguments are the last ones; hidden written arguments are read as well.
    const bool is_out = entry.is_out && (entry.hidden.empty() ||
                                         index + entry.written.size() >= decision.operands.size());
    return borrow_written(entry, *meta, target, is_out);
  }
  if (!target.defined() || (meta != nullptr && target == meta->sharding())) {
    return meta != nullptr ? meta->local() : tensor;
  }
  const comm::CallSite site({.op = entry.name, .implicit = true});
  at::Tensor local = meta != nullptr ? meta->local() : tensor;
  Sharding from = meta != nullptr ? meta->sharding() : as_replicated(tensor, target.mesh());
  if (from.mesh() != target.mesh()) {  // one number, which all ranks here hold
    local = exec::redistribute(local, from, from.replicated(), {.may_alias = true});
    from = as_replicated(local, target.mesh());
  }
  if (from.is_replicated() && target.is_replicated()) return local;
  at::Tensor moved = exec::redistribute(local, from, target, {.may_alias = true});
  if (tensor.unsafeGetTensorImpl()->is_wrapped_number()) {
    // A number does not widen the op's result, a tensor of no dims does: int64 + 2.5 is float32.
    moved.unsafeGetTensorImpl()->set_wrapped_number(true);
    return moved;
  }
  if (entry.is_view && target.mesh().contains_me() && shares_elements(target) &&
      can_share_elements(target, from)) [[unlikely]] {
    return copy_sharing_elements(moved, target, local, from);
  }
  return strided_as(moved, entry.is_view ? target : with_own_elements(target));
}

/// local_operand, or the local tensor that a previous op made of the same operand.
at::Tensor local_operand_once(const OpEntry& entry, const Decision& decision, size_t index,
                              const at::Tensor& tensor) {
  const ShardedMeta* meta = sharded_meta(tensor);
  const bool may_keep = decision.moves && !entry.is_view && meta != nullptr &&
                        index < decision.operands.size() && decision.operands[index].defined() &&
                        decision.operands[index] != meta->sharding() &&
                        std::ranges::find(decision.write_back, index) == decision.write_back.end();
  if (!may_keep) return local_operand(entry, decision, index, tensor);
  if (at::Tensor kept = find_gather(tensor, decision.operands[index]); kept.defined()) return kept;
  at::Tensor local = local_operand(entry, decision, index, tensor);
  keep_gather(tensor, decision.operands[index], local);
  return local;
}

void scale_result(const Decision& decision, size_t index, const at::Tensor& local) {
  if (index >= decision.scale.size() || decision.scale[index] == 1.0 || !local.defined()) return;
  if (decision.scale[index] == 0.0) {
    local.zero_();  // not a product: the mean of an empty part is NaN
  } else {
    local.mul_(decision.scale[index]);
  }
}

/// Completes open sizes from the local result. Strides are row-major: an empty part does not
/// determine any.
Sharding completed(const OpenResult& open, const at::Tensor& local, const DeviceMesh& mesh) {
  std::vector<int64_t> shape = open.shape;
  if (static_cast<int64_t>(shape.size()) != local.dim()) {
    // Results that a rule does not describe (random states, debug output) are replicated.
    const bool whole = std::ranges::all_of(
        open.placements, [](const Placement& placement) { return placement.is_replicate(); });
    ensure(whole, "a rule's sharded result has other dims than the op's");
    return as_replicated(local, mesh);
  }
  for (size_t dim = 0; dim < shape.size(); ++dim) {
    if (shape[dim] < 0) shape[dim] = local.size(static_cast<int64_t>(dim));
  }
  return Sharding(mesh, open.placements, std::move(shape),
                  {.dtype = static_cast<DType>(local.scalar_type()), .order = open.order});
}

/// Whether a local result has the metadata of the one that completed `last`. A decision fixes all
/// else, so it completes the same sharding.
bool completes_again(const at::Tensor& local, const Sharding& last) {
  return last.defined() && static_cast<DType>(local.scalar_type()) == last.dtype() &&
         std::ranges::equal(local.sizes(), last.local_shape()) &&
         std::ranges::equal(local.strides(), last.local_stride());
}

/// Wraps a result whose sharding its decision leaves open.
at::Tensor wrap_completed(const OpEntry& entry, const Decision& decision, size_t index,
                          at::Tensor local) {
  if (local.is_nested() || local.is_sparse_csr()) require_strided(entry.name, local);
  if (decision.completed.size() <= index) decision.completed.resize(index + 1);
  Sharding& last = decision.completed[index];
  if (completes_again(local, last)) return wrap(std::move(local), last);
  const bool is_open = index < decision.open.size();
  const Sharding sharding = is_open ? completed(decision.open[index], local, decision.mesh)
                                    : as_replicated(local, decision.mesh);
  const bool has_other_strides = !entry.is_view &&
                                 std::ranges::equal(local.sizes(), sharding.local_shape()) &&
                                 !is_laid_out_as(local, sharding.local_stride());
  const at::Tensor result =
      has_other_strides ? wrap_as_laid_out(local, sharding) : wrap(local, sharding);
  last = sharded_meta(result)->sharding();
  return result;
}

/// The written arguments of the call on the stack: tensors, and lists of them.
std::vector<c10::IValue> out_arguments(const OpEntry& entry, const Stack& stack) {
  std::vector<c10::IValue> outs;
  const size_t base = stack.size() - entry.args.size();
  for (const int i : entry.written) outs.push_back(stack[base + static_cast<size_t>(i)]);
  return outs;
}

void copy_into(const c10::IValue& out, const c10::IValue& result) {
  if (out.isTensor()) {
    out.toTensor().copy_(result.toTensor());
    return;
  }
  const auto from = result.toTensorVector();
  const auto to = out.toTensorVector();
  for (size_t i = 0; i < to.size(); ++i) to[i].copy_(from[i]);
}

/// The replacement produced new results, starting at `base`: copies them into the out= arguments.
void copy_results(const OpEntry& entry, const std::vector<c10::IValue>& outs, const Stack& stack,
                  size_t base) {
  for (size_t r = 0; r < entry.result_alias.size() && !outs.empty(); ++r) {
    const auto at = std::ranges::find(entry.written, entry.result_alias[r]);
    if (at == entry.written.end()) continue;
    copy_into(outs[static_cast<size_t>(at - entry.written.begin())], stack[base + r]);
  }
}

/// Runs another op instead of the called one: its arguments replace those on the stack.
void run_instead(const OpEntry& entry, const Replacement& replacement, Stack& stack) {
  const size_t base = stack.size() - entry.args.size();
  const auto outs = out_arguments(entry, stack);
  Stack args;
  for (const auto& [index, value] : replacement.args) {
    args.push_back(index >= 0 ? stack[base + static_cast<size_t>(index)] : value);
  }
  stack.resize(base);
  for (auto& arg : args) stack.push_back(std::move(arg));
  replacement.op.callBoxed(&stack);
  copy_results(entry, outs, stack, base);
  if (entry.result_alias.empty() && outs.size() == 1) {  // split_copy(out=) returns nothing
    copy_into(outs.front(), stack[base]);
    stack.resize(base);
  }
}

/// A row's kernel returns new results, also for an out= argument.
void run_kernel(const OpEntry& entry, const c10::OperatorHandle& op, const Decision& decision,
                Stack& stack) {
  const size_t base = stack.size() - entry.args.size();
  const auto outs = out_arguments(entry, stack);
  const comm::CallSite site(
      {.op = entry.name, .implicit = decision.comm == rules::KernelComm::combine});
  (*decision.kernel)({op, entry.name, decision.operands, decision.results, stack});
  copy_results(entry, outs, stack, base);
}

}  // namespace

namespace {

/// Advances `operand`, the index of the first one.
c10::List<at::Tensor> to_local_list(const OpEntry& entry, const Decision& decision, size_t& operand,
                                    at::ArrayRef<c10::IValue> tensors) {
  c10::List<at::Tensor> locals;
  locals.reserve(tensors.size());
  for (const c10::IValue& item : tensors) {
    const at::Tensor& tensor = item.toTensor();
    if (decision.moves) {
      locals.push_back(local_operand_once(entry, decision, operand, tensor));
    } else {
      const ShardedMeta* meta = sharded_meta(tensor);
      locals.push_back(meta != nullptr ? meta->local() : tensor);
    }
    ++operand;
  }
  return locals;
}

}  // namespace

void to_local_args(const OpEntry& entry, const Decision& decision, Stack& stack) {
  const size_t base = stack.size() - entry.args.size();
  size_t operand = 0;
  for (size_t i = 0; i < entry.args.size(); ++i) {
    c10::IValue& value = stack[base + i];
    if (entry.args[i] == ArgKind::tensor) {
      if (value.isTensor()) {
        value = local_operand_once(entry, decision, operand, value.toTensor());
      }
      ++operand;
    } else if (entry.args[i] == ArgKind::tensor_list && !value.isNone()) {
      if (value.isTensorList()) {
        value = to_local_list(entry, decision, operand, value.toListRef());
      } else {
        c10::List<std::optional<at::Tensor>> locals;
        for (const auto& item : value.toListRef()) {
          if (item.isNone()) {
            locals.push_back(std::nullopt);
          } else {
            locals.push_back(local_operand_once(entry, decision, operand, item.toTensor()));
          }
          ++operand;
        }
        value = std::move(locals);
      }
    }
  }
  for (const auto& [index, value] : decision.local_args) {
    stack[base + static_cast<size_t>(index)] = value;
  }
}

void run_local(const OpEntry& entry, const c10::OperatorHandle& op, const Decision& decision,
               Stack& stack) {
  if (decision.kernel != nullptr) {
    run_kernel(entry, op, decision, stack);
  } else if (decision.instead) {
    run_instead(entry, *decision.instead, stack);
  } else {
    op.callBoxed(&stack);
  }
}

at::Tensor wrap_result(const OpEntry& entry, const Decision& decision, size_t index,
                       at::Tensor local) {
  if (!local.defined()) return local;
  if (entry.is_view && (local.is_conj() || local.is_neg())) {
    // Conjugate and negative bits are resolved: the sharded tensor does not carry them.
    return wrap_copy_of_view(local.resolve_conj().resolve_neg(), decision.results[index]);
  }
  if (entry.is_view && decision.moves) {
    const bool known = index < decision.results.size() && decision.results[index].defined();
    const Sharding as = known ? decision.results[index] : as_replicated(local, decision.mesh);
    return wrap_copy_of_view(std::move(local), as);
  }
  if (index < decision.results.size() && decision.results[index].defined()) {
    const Sharding& sharding = decision.results[index];
    if (std::ranges::equal(local.sizes(), sharding.local_shape()) ||
        !sharding.mesh().contains_me()) {
      if (static_cast<DType>(local.scalar_type()) != sharding.dtype()) {
        return wrap(local, sharding.with_dtype(static_cast<DType>(local.scalar_type())));
      }
      if (!entry.is_view && !is_laid_out_as(local, sharding.local_stride()) &&
          sharding.mesh().contains_me()) [[unlikely]] {
        decision.laid_out.resize(decision.results.size());
        return wrap_as_laid_out(local, sharding, decision.laid_out[index]);
      }
      return wrap(std::move(local), sharding);
    }
    if (!sharding.is_replicated()) {
      throw InternalError(join_text(entry.name, " gave a local result of ",
                                    shape_text(local.sizes()), " where its rule says ",
                                    shape_text(sharding.local_shape()), " of ", sharding));
    }
  }
  return wrap_completed(entry, decision, index, std::move(local));
}

void wrap_results(const OpEntry& entry, const Decision& decision, Stack& stack, size_t base,
                  std::span<c10::IValue> written) {
  size_t result = 0;
  for (size_t r = 0; r < entry.result_alias.size(); ++r) {
    c10::IValue& value = stack[base + r];
    if (value.isTensor()) scale_result(decision, result, value.toTensor());
    if (const int from = entry.result_alias[r]; from >= 0) {
      for (size_t w = 0; w < entry.written.size(); ++w) {
        if (entry.written[w] == from) value = written[w];
      }
      ++result;
    } else if (value.isTensor()) {
      value = wrap_result(entry, decision, result++, std::move(value).toTensor());
    } else if (entry.result_is_list[r]) {
      c10::List<at::Tensor> wrapped;
      for (const at::Tensor& local : value.toTensorVector()) {
        wrapped.push_back(wrap_result(entry, decision, result++, local));
      }
      value = std::move(wrapped);
    } else {
      ++result;
    }
  }
}

}  // namespace tessera::dtensor
