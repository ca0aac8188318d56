#include "tessera/dtensor/kernels/partial_operands.h"

#include <ATen/autocast_mode.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/List.h>
#include <c10/core/GradMode.h>
#include <c10/core/InferenceMode.h>
#include <torch/csrc/autograd/graph_task.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>
#include <optional>
#include <unordered_map>

#include "tessera/dtensor/dispatch/aliased_statistics.h"
#include "tessera/dtensor/dispatch/composite.h"
#include "tessera/dtensor/dispatch/dispatch.h"
#include "tessera/dtensor/dispatch/lazy/lazy_dispatch.h"
#include "tessera/dtensor/dispatch/lazy/lazy_dtypes.h"
#include "tessera/dtensor/kernels/register.h"
#include "tessera/dtensor/policy.h"
#include "tessera/dtensor/redistribute_once.h"
#include "tessera/dtensor/tensor/kept_copies.h"
#include "tessera/dtensor/tensor/layout.h"
#include "tessera/observe/call_site.h"
#include "tessera/sharding/without_partial.h"

namespace tessera::dtensor {

bool in_backward() {
  constexpr int kNoBackward = -1;
  return torch::autograd::get_current_graph_task_id() != kNoBackward;
}

bool is_below_autograd() {
  return !c10::InferenceMode::is_enabled() && c10::impl::tls_local_dispatch_key_set().excluded_.has(
                                                  c10::DispatchKey::AutogradFunctionality);
}

bool is_partial(const at::Tensor& tensor) {
  const ShardedMeta* meta = sharded_meta(tensor);
  return meta != nullptr && meta->sharding().has_partial();
}

void replace_operand(const OpEntry& entry, Stack& stack, size_t operand, const at::Tensor& by) {
  const size_t base = stack.size() - entry.args.size();
  size_t index = 0;
  for (size_t i = 0; i < entry.args.size(); ++i) {
    c10::IValue& value = stack[base + i];
    if (entry.args[i] == ArgKind::tensor) {
      if (index++ == operand) value = by;
    } else if (entry.args[i] == ArgKind::tensor_list && !value.isNone()) {
      const size_t size = value.toListRef().size();
      if (operand >= index && operand < index + size) {
        if (value.isTensorList()) {
          auto list = value.toTensorList().copy();
          list.set(operand - index, by);
          value = std::move(list);
        } else {
          auto list = value.toOptionalTensorList().copy();
          list.set(operand - index, by);
          value = std::move(list);
        }
      }
      index += size;
    }
  }
}

namespace {

using rules::PartialUse;

/// The ops that a composite op calls come here too, and say what they write to.
bool is_made_of_ops(const c10::OperatorHandle& op, const OpEntry& entry) {
  if (entry.decomposition != nullptr) return true;
  const c10::OperatorName& name = op.operator_name();
  const bool decomposes =
      !op.hasKernelForDispatchKey(kKey) || makes_tensors(name) || dtype_kernel(name).has_value();
  return decomposes && op.hasKernelForDispatchKey(c10::DispatchKey::CompositeImplicitAutograd);
}

bool is_read_partial(const Operand& operand) {
  return operand.sharded != nullptr && !operand.written && !operand.hidden &&
         !operand.sharded->is_copy_of_view() && operand.sharded->lazy() == nullptr &&
         operand.sharded->sharding().has_partial();
}

/// An operand to redistribute. Collected first: to replace one frees what the others point to.
struct Reduction {
  size_t operand;
  at::Tensor tensor;
  Sharding to;
};

void reduce(const OpEntry& entry, Stack& stack, const std::vector<Reduction>& reductions) {
  const comm::CallSite site({.op = entry.name, .implicit = true});
  for (const Reduction& item : reductions) {
    replace_operand(entry, stack, item.operand, redistribute_once(item.tensor, item.to));
  }
}

const Decision& decide_below_autograd(const OpEntry& entry, const c10::OperatorHandle& op,
                                      const Stack& stack) {
  const at::AutoDispatchBelowADInplaceOrView below_autograd;
  return decision_for(entry, op, stack);
}

/// Whether autograd records nothing for the call: comparisons, argmax, logical ops. What has no
/// fractions has no derivative. Then a reduction for the call must not be recorded either: libtorch
/// refuses to record uses of some views, which these ops accept.
bool records_nothing(const Decision& decision) {
  const auto has_no_fractions = [](const Sharding& result) {
    return result.defined() &&
           !torch::autograd::isDifferentiableType(static_cast<at::ScalarType>(result.dtype()));
  };
  return !decision.results.empty() && std::ranges::all_of(decision.results, has_no_fractions);
}

/// Grad mode for a reduction.
class RecordsIf {
 public:
  explicit RecordsIf(bool records) {
    if (!records) no_grad_.emplace();
  }

 private:
  std::optional<c10::NoGradGuard> no_grad_;
};

/// A reduced copy that was made before, as the call records it. Undefined if there is none.
at::Tensor find_copy_for(const UsedOp& used, const c10::OperatorHandle& op, const Stack& stack,
                         const at::Tensor& tensor) {
  at::Tensor reduced = find_reduced(tensor);
  if (reduced.defined() || !records_uses(tensor)) return reduced;
  const auto unrecorded = unrecorded_reduction(tensor);
  if (!unrecorded) return reduced;
  const bool by_rows = used.use != PartialUse::matmul && !takes_lazy(*used.entry, stack);
  const RecordsIf mode(!by_rows || !records_nothing(decide_below_autograd(*used.entry, op, stack)));
  return redistribute_once(tensor, *unrecorded);
}

/// Uses a reduced copy wherever there is one. Returns whether Partial operands are left.
bool use_copies(const UsedOp& used, const c10::OperatorHandle& op, Stack& stack) {
  const OpEntry& entry = *used.entry;
  bool left = false;
  std::vector<std::pair<size_t, at::Tensor>> found;
  const auto operands = operands_of(entry, stack);
  for (size_t i = 0; i < operands.size(); ++i) {
    if (!is_read_partial(operands[i])) continue;
    at::Tensor reduced = find_copy_for(used, op, stack, *operands[i].tensor);
    left = left || !reduced.defined();
    if (reduced.defined()) found.emplace_back(i, std::move(reduced));
  }
  for (const auto& [operand, reduced] : found) replace_operand(entry, stack, operand, reduced);
  return left;
}

void reduce_all_operands(const OpEntry& entry, Stack& stack) {
  std::vector<Reduction> reductions;
  const auto operands = operands_of(entry, stack);
  for (size_t i = 0; i < operands.size(); ++i) {
    if (!is_read_partial(operands[i])) continue;
    reductions.push_back(
        {i, *operands[i].tensor, without_partial(operands[i].sharded->sharding())});
  }
  reduce(entry, stack, reductions);
}

/// Whether an operand is sharded or Partial on an axis on which `tensor` is Partial.
bool is_sharded_beside(const Sharding& tensor, const Sharding& other) {
  if (tensor.mesh() != other.mesh()) return true;
  for (int axis = 0; axis < tensor.mesh().ndim(); ++axis) {
    if (tensor.placement(axis).is_partial() && !other.placement(axis).is_replicate()) return true;
  }
  return false;
}

/// Whether the op's other operands are sharded on an axis on which this one is Partial: then it is
/// reduced to the shards that fit them. Otherwise all ranks get the sum: shards would be cheaper
/// for this op, and have to be gathered for the next.
bool has_shards_beside(const std::vector<Operand>& operands, size_t index) {
  const Sharding& own = operands[index].sharded->sharding();
  for (size_t i = 0; i < operands.size(); ++i) {
    if (i == index || operands[i].sharded == nullptr) continue;
    const Sharding& other = operands[i].sharded->sharding();
    if (other.mesh() != own.mesh()) continue;
    for (int axis = 0; axis < own.mesh().ndim(); ++axis) {
      if (own.placement(axis).is_partial() && other.placement(axis).is_sharded()) return true;
    }
  }
  return false;
}

/// matmul of a Partial tensor with a replicated one is Partial; with a sharded one it needs the
/// sum.
void reduce_for_matmul(const OpEntry& entry, Stack& stack) {
  const auto operands = operands_of(entry, stack);
  if (operands[0].sharded == nullptr || operands[1].sharded == nullptr) return;
  const bool is_lazy =
      operands[0].sharded->lazy() != nullptr || operands[1].sharded->lazy() != nullptr;
  std::vector<Reduction> reductions;
  for (const size_t i : {size_t{0}, size_t{1}}) {
    if (!is_read_partial(operands[i])) continue;
    const Sharding& own = operands[i].sharded->sharding();
    if (!is_lazy && !is_sharded_beside(own, operands[1 - i].sharded->sharding())) continue;
    reductions.push_back({i, *operands[i].tensor, without_partial(own)});
  }
  reduce(entry, stack, reductions);
}

/// Whether a Partial operand is a gradient in a product: other tensors take part, and it is none
/// that the forward saved.
bool is_gradient_in_product(const Operand& operand, const std::vector<Operand>& operands) {
  if (!in_backward() || CommPolicy::current() != ImplicitComm::allow) return false;
  const auto has_dims = [](const Operand& other) {
    return other.tensor->defined() && other.tensor->dim() > 0;
  };
  return has_dims(operand) && !operand.tensor->requires_grad() &&
         std::ranges::count_if(operands, has_dims) > 1;
}

void reduce_as_decided(const UsedOp& used, const c10::OperatorHandle& op, Stack& stack) {
  const OpEntry& entry = *used.entry;
  const Decision* decision = &decide_below_autograd(entry, op, stack);
  if (decision->by_mesh) return;
  if (decision->moves) check_policy(entry, *decision, stack);
  std::vector<Reduction> reductions;
  const bool may_reduce_gradients = used.use == PartialUse::by_rows;
  const auto operands = operands_of(entry, stack);
  for (size_t i = 0; i < operands.size() && i < decision->operands.size(); ++i) {
    if (!is_read_partial(operands[i])) continue;
    const Sharding& own = operands[i].sharded->sharding();
    const Sharding& wanted = decision->operands[i];
    const bool moves = wanted.defined() && wanted != own && wanted.mesh() == own.mesh();
    if (moves && !wanted.has_partial() && has_shards_beside(operands, i)) {
      reductions.push_back({i, *operands[i].tensor, wanted});
    } else if (moves || (may_reduce_gradients && is_gradient_in_product(operands[i], operands))) {
      reductions.push_back({i, *operands[i].tensor, without_partial(own)});
    }
  }
  if (reductions.empty()) return;
  const RecordsIf mode(!records_nothing(*decision));
  reduce(entry, stack, reductions);
}

/// False only if no tensor is Partial; lists are not searched.
bool may_have_partial(const OpEntry& entry, const Stack& stack) {
  const size_t base = stack.size() - entry.args.size();
  for (size_t i = 0; i < entry.args.size(); ++i) {
    if (entry.args[i] == ArgKind::tensor_list) return true;
    const c10::IValue& value = stack[base + i];
    if (entry.args[i] == ArgKind::tensor && value.isTensor() && is_partial(value.toTensor())) {
      return true;
    }
  }
  return false;
}

/// Whether operands have different floating dtypes which autocast, whose turn comes later, may make
/// one: a decision for the operands as they are now could be an error that the call has not.
bool may_be_cast(const OpEntry& entry, const Stack& stack) {
  using at::autocast::is_autocast_enabled;
  if (!is_autocast_enabled(at::kCPU) && !is_autocast_enabled(at::kCUDA)) return false;
  const at::Tensor* first = nullptr;
  for (const Operand& operand : operands_of(entry, stack)) {
    if (!operand.tensor->defined() || !operand.tensor->is_floating_point()) continue;
    if (first == nullptr) first = operand.tensor;
    if (first->scalar_type() != operand.tensor->scalar_type()) return true;
  }
  return false;
}

/// Whether there is clearly nothing to reduce: nothing is Partial, or no copies are kept and the
/// decision moves nothing. Spares most calls the list of their operands.
bool takes_operands_as_they_are(const UsedOp& used, const c10::OperatorHandle& op,
                                const Stack& stack) {
  if (!may_have_partial(*used.entry, stack) || may_be_cast(*used.entry, stack)) return true;
  if (tensors_with_copies() != 0 || LazyLocal::any() || used.use == PartialUse::matmul)
    return false;
  if (in_backward()) return used.use == PartialUse::sum;
  if (!used.entry->written.empty()) return false;
  return !decide_below_autograd(*used.entry, op, stack).moves;
}

}  // namespace

const UsedOp& used_op(const c10::OperatorHandle& op) {
  thread_local std::unordered_map<c10::OperatorHandle, UsedOp> known;
  auto [at, is_new] = known.try_emplace(op);
  if (is_new) {
    UsedOp& used = at->second;
    used.entry = entry_of(op);
    used.use = rules::partial_use(op.operator_name().name);
    const bool is_product = used.use == PartialUse::matmul || used.use == PartialUse::product;
    used.keeps_operands = !is_product && (is_made_of_ops(op, *used.entry) || used.entry->is_view);
  }
  return at->second;
}

void reduce_operands(const UsedOp& used, const c10::OperatorHandle& op, Stack& stack) {
  const OpEntry& entry = *used.entry;
  if (used.keeps_operands) return;
  if (!entry.hidden.empty()) refuse_aliased_statistics(entry, stack);  // before a copy is made
  if (is_below_autograd()) return;
  if (takes_operands_as_they_are(used, op, stack) || !use_copies(used, op, stack)) return;
  if (used.use == PartialUse::matmul) return reduce_for_matmul(entry, stack);
  if (takes_lazy(entry, stack)) {
    if (entry.written.empty()) reduce_all_operands(entry, stack);
    return;
  }
  if (used.use == PartialUse::sum && in_backward()) return;
  reduce_as_decided(used, op, stack);
}

}  // namespace tessera::dtensor
