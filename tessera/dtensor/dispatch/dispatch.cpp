#include "tessera/dtensor/dispatch/dispatch.h"

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/List.h>
#include <c10/core/InferenceMode.h>
#include <c10/util/SmallVector.h>

#include <algorithm>
#include <optional>

#include "tessera/base/errors.h"
#include "tessera/dtensor/autograd.h"
#include "tessera/dtensor/dispatch/aliased_statistics.h"
#include "tessera/dtensor/dispatch/call_key.h"
#include "tessera/dtensor/dispatch/composite.h"
#include "tessera/dtensor/dispatch/decide/decide.h"
#include "tessera/dtensor/dispatch/decide/sequential_random_ops.h"
#include "tessera/dtensor/dispatch/gathered_views.h"
#include "tessera/dtensor/dispatch/lazy/lazy_dispatch.h"
#include "tessera/dtensor/dispatch/local_call.h"
#include "tessera/dtensor/dispatch/outside_call.h"
#include "tessera/dtensor/dispatch/write_count.h"

namespace tessera::dtensor {
namespace {

/// Whether a view of `base` must be marked as a copy: it is taken of a redistributed copy, or of
/// such a view, or is computed. Except detach in backward: autograd detaches the gradients it
/// stores, which are independent tensors.
bool is_view_of_copy(const OpEntry& entry, const Decision& decision, const c10::IValue& base) {
  if (!entry.is_view || !base.isTensor()) return false;
  const ShardedMeta* meta = sharded_meta(base.toTensor());
  if (meta == nullptr) return false;
  const bool is_own = entry.name == "aten::detach" && in_backward_or_composite();
  return decision.moves || entry.sets_bit || (meta->is_copy_of_view() && !is_own);
}

/// A view is an inference tensor if and only if its base is one, whatever the current mode.
bool crosses_inference_mode(const OpEntry& entry, const Stack& stack) {
  if (!entry.is_view) return false;
  const c10::IValue& base = stack[stack.size() - entry.args.size()];
  return base.isTensor() && base.toTensor().defined() &&
         base.toTensor().is_inference() != c10::InferenceMode::is_enabled();
}

int64_t offset_of_base(const c10::IValue& value) {
  return value.isTensor() && value.toTensor().defined() ? offset_in_bytes(value.toTensor()) : 0;
}

void share_write_counts(const at::Tensor& base, std::span<const c10::IValue> results) {
  for (const c10::IValue& result : results) {
    if (result.isTensor()) {
      share_write_count(base, result.toTensor());
    } else if (result.isTensorList()) {
      for (const at::Tensor& view : result.toTensorVector()) share_write_count(base, view);
    }
  }
}

void set_view_offsets(const Decision& decision, int64_t bytes,
                      std::span<const c10::IValue> results) {
  if (bytes == 0 && decision.view_offsets.empty()) return;
  size_t index = 0;
  for (const c10::IValue& result : results) {
    if (result.isTensor()) {
      set_view_offset(decision, index++, bytes, result.toTensor());
    } else if (result.isTensorList()) {
      for (const at::Tensor& view : result.toTensorVector()) {
        set_view_offset(decision, index++, bytes, view);
      }
    }
  }
}

std::vector<at::Tensor> tensors_at(const OpEntry& entry, const Stack& stack,
                                   const std::vector<size_t>& operands) {
  std::vector<at::Tensor> out;
  if (operands.empty()) return out;
  const auto all = operands_of(entry, stack);
  for (const size_t i : operands) out.push_back(*all[i].tensor);
  return out;
}

}  // namespace

const Decision& decision_for(const OpEntry& entry, const c10::OperatorHandle& op,
                             const Stack& stack) {
  DecisionKey key;
  add_call(entry, stack, key);
  if (const Decision* known = DecisionCache::find(entry.id, key)) return *known;
  std::vector<Sharding> keep;
  for (const auto& operand : operands_of(entry, stack)) {
    if (operand.sharded != nullptr) keep.push_back(operand.sharded->sharding());
  }
  const InternalOps internal;
  return *DecisionCache::put(entry.id, key, decide(entry, op, stack), std::move(keep));
}

namespace {

/// The shardings with which the op ran on the local parts.
std::string operands_text(const Decision& decision) {
  std::string out;
  for (const Sharding& operand : decision.operands) {
    if (operand.defined()) out += (out.empty() ? "" : "; ") + operand.to_text();
  }
  return out;
}

void run_here(const OpEntry& entry, const c10::OperatorHandle& op, const Decision& decision,
              Stack& stack) {
  if (!decision.mesh.contains_me()) [[unlikely]]
    return run_outside(entry, decision, stack);
  try {
    run_local(entry, op, decision, stack);
  } catch (c10::Error& error) {  // it refers to local shapes, which the caller does not know
    error.add_context(join_text(entry.name, " of sharded tensors: ", operands_text(decision)));
    throw;
  }
}

void dispatch_up_to_date(const OpEntry& entry, const c10::OperatorHandle& op, Stack& stack) {
  if (LazyLocal::any() && dispatch_lazy(entry, op, stack)) return;
  if (!entry.written.empty()) adopt_internal(entry, stack);
  if (!entry.hidden.empty()) refuse_aliased_statistics(entry, stack);
  std::optional<CountedWrites> counted;
  if (!entry.written.empty() || !entry.hidden.empty()) counted.emplace(entry, stack);
  if (entry.decomposition != nullptr && entry.decomposition(entry, op, stack)) return;
  const size_t base = stack.size() - entry.args.size();
  const Decision* decision = &decision_for(entry, op, stack);
  if (decision->by_mesh) return dispatch_by_mesh(entry, op, stack);
  if (decision->moves && entry.name == "aten::select.int" && select_of_slice(entry, op, stack)) {
    return;
  }
  check_policy(entry, *decision, stack);

  if (decision->replicates && decision->mesh.contains_me()) [[unlikely]] {
    check_drawing(entry, op, decision->mesh, stack);
  }
  c10::SmallVector<c10::IValue, 4> written;
  for (const int w : entry.written) {
    written.push_back(stack[base + static_cast<size_t>(w)]);
    check_writable(entry, written.back());
  }
  std::vector<at::Tensor> originals = tensors_at(entry, stack, decision->write_back);
  if (originals.size() > 1) check_written_once(entry, originals);
  at::Tensor viewed;
  if (is_view_of_copy(entry, *decision, stack[base])) [[unlikely]]
    viewed = stack[base].toTensor();
  const int64_t offset = entry.is_view ? offset_of_base(stack[base]) : 0;
  to_local_args(entry, *decision, stack);
  at::Tensor view_base;
  if (entry.is_view && !decision->moves && stack[base].isTensor()) {
    view_base = stack[base].toTensor();
  }
  const std::vector<at::Tensor> borrowed = tensors_at(entry, stack, decision->write_back);
  const at::Tensor copied = viewed.defined() ? stack[base].toTensor() : at::Tensor();
  run_here(entry, op, *decision, stack);
  wrap_results(entry, *decision, stack, base, {written.data(), written.size()});
  if (entry.is_view) set_view_offsets(*decision, offset, std::span(stack).subspan(base));
  if (view_base.defined()) share_write_counts(view_base, std::span(stack).subspan(base));
  if (!originals.empty()) write_back(entry, *decision, originals, borrowed);
  if (viewed.defined()) [[unlikely]] {
    note_origin(entry, *decision, viewed, copied, std::span(stack).subspan(base));
  }
}

}  // namespace

void dispatch(const OpEntry& entry, const c10::OperatorHandle& op, Stack& stack) {
  std::optional<c10::InferenceMode> mode_of_base;
  if (crosses_inference_mode(entry, stack)) [[unlikely]] {
    mode_of_base.emplace(!c10::InferenceMode::is_enabled());
  }
  const at::AutoDispatchBelowADInplaceOrView below_autograd;
  if (!any_gathered_views()) return dispatch_up_to_date(entry, op, stack);
  const GatheredViewsOfCall views(entry, stack);
  dispatch_up_to_date(entry, op, stack);
  views.move_writes(entry);
}

}  // namespace tessera::dtensor
