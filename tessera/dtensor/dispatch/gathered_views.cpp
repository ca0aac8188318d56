#include "tessera/dtensor/dispatch/gathered_views.h"

#include <ATen/ops/slice.h>
#include <c10/core/WrapDimMinimal.h>

#include <algorithm>
#include <utility>

#include "tessera/base/errors.h"
#include "tessera/dtensor/dispatch/dispatch.h"
#include "tessera/dtensor/tensor/overlap.h"
#include "tessera/exec/redistribute.h"
#include "tessera/observe/call_site.h"

namespace tessera::dtensor {
namespace {

bool entry_writes_lists(const OpEntry& entry) {
  return std::ranges::any_of(entry.written, [&](int arg) {
    return entry.args[static_cast<size_t>(arg)] == ArgKind::tensor_list;
  });
}

/// Whether the results of a view op alias `local`.
bool share_memory(std::span<const c10::IValue> results, const at::Tensor& local) {
  return std::ranges::all_of(results, [&](const c10::IValue& result) {
    if (result.isTensorList()) {
      const auto list = result.toTensorVector();
      return std::ranges::all_of(list, [&](const at::Tensor& item) {
        return sharded_meta(item)->local().is_alias_of(local);
      });
    }
    const ShardedMeta* meta = result.isTensor() ? sharded_meta(result.toTensor()) : nullptr;
    return meta != nullptr && meta->local().is_alias_of(local);
  });
}

void set_origin(const c10::IValue& result, const std::shared_ptr<const ViewOrigin>& origin) {
  if (result.isTensorList()) {
    for (const at::Tensor& tensor : result.toTensorVector()) set_origin(tensor, origin);
    return;
  }
  if (!result.isTensor() || sharded_meta(result.toTensor()) == nullptr) return;
  mark_copy_of_view(result.toTensor(), origin);
}

}  // namespace

GatheredViewsOfCall::GatheredViewsOfCall(const OpEntry& entry, const Stack& stack) {
  const auto operands = operands_of(entry, stack);
  const comm::CallSite site({.op = entry.name, .implicit = true});
  for (const Operand& operand : operands) {
    if (operand.sharded != nullptr && operand.sharded->origin() != nullptr) {
      refresh(*operand.sharded->origin());
    }
  }
  for (const Operand& operand : operands) {
    if (operand.sharded == nullptr || (!operand.written && !operand.hidden)) continue;
    if (!operand.sharded->local().defined()) continue;  // a lazy view: the write goes to its base
    check_writable(entry, *operand.tensor);
    note_write(*operand.sharded);
    const auto& origin = operand.sharded->origin();
    const bool moves_already = std::ranges::any_of(
        written_, [&](const at::Tensor& view) { return sharded_meta(view)->origin() == origin; });
    if (origin != nullptr && !moves_already) written_.push_back(*operand.tensor);
  }
  if (written_.size() < 2 && !entry_writes_lists(entry)) return;
  for (const at::Tensor& view : written_) {
    // Another operand of this call has written to the base, before or after: the copy does not
    // include it.
    const ViewOrigin& origin = *sharded_meta(view)->origin();
    if (!is_stale(origin)) continue;
    throw NotSupported(join_text(
        entry.name,
        " writes to a view of a sharded tensor that had to be gathered, and to the "
        "tensor or another such view of it, in one call; write to them in calls of their own"));
  }
}

void GatheredViewsOfCall::move_writes(const OpEntry& entry) const {
  for (const at::Tensor& view : written_) write_through(entry, view);
}

void write_through(const OpEntry& entry, const at::Tensor& view) {
  const ShardedMeta* meta = sharded_meta(view);
  const comm::CallSite site({.op = entry.name, .implicit = true});
  while (meta->origin() != nullptr) {
    const ViewOrigin& origin = *meta->origin();
    meta = sharded_meta(origin.base);
    copy_into(meta->local(), exec::redistribute(computed(origin.value, origin.gathered), origin.as,
                                                meta->sharding(), {.may_alias = true}));
  }
}

void note_origin(const OpEntry& entry, const Decision& decision, const at::Tensor& base,
                 const at::Tensor& local, std::span<const c10::IValue> results) {
  std::shared_ptr<const ViewOrigin> origin;
  if (entry.sets_bit) {
    const auto value = entry.name == "aten::_conj" ? ViewValue::conjugate : ViewValue::negative;
    const ShardedMeta* copy = sharded_meta(results[0].toTensor());
    return set_origin(results[0], make_origin(base, copy->local(), decision.operands[0], value));
  }
  const bool shares = decision.operands[0].defined() && share_memory(results, local);
  if (!decision.moves) {
    origin = sharded_meta(base)->origin();
  } else {
    origin = make_origin(base, shares ? local : at::Tensor(), decision.operands[0]);
  }
  for (const auto& result : results) set_origin(result, origin);
}

void check_writable(const OpEntry& entry, const c10::IValue& value) {
  const ShardedMeta* meta = value.isTensor() ? sharded_meta(value.toTensor()) : nullptr;
  if (meta == nullptr || !meta->is_copy_of_view()) return;
  require(meta->origin() != nullptr && meta->origin()->gathered.defined(), entry.name,
          " writes to a view of a sharded tensor that had to be copied, so the write would be "
          "lost; redistribute the tensor before taking the view, or write to a slice of it");
}

/// select.int(self, dim, index)
bool select_of_slice(const OpEntry& entry, const c10::OperatorHandle& op, Stack& stack) {
  const size_t base = stack.size() - entry.args.size();
  const at::Tensor self = stack[base].toTensor();
  if (self.dim() == 0) return false;
  const int64_t dim = c10::maybe_wrap_dim(stack[base + 1].toInt(), self.dim());
  const int64_t size = self.size(dim);
  int64_t index = stack[base + 2].toInt();
  index += index < 0 ? size : 0;
  const Sharding& from = sharded_meta(self)->sharding();
  if (size < 2 || index < 0 || index >= size || from.axes_of_dim(static_cast<int>(dim)).empty()) {
    return false;
  }
  stack[base] = at::slice(self, dim, index, index + 1);
  stack[base + 2] = 0;
  dispatch(entry, op, stack);
  return true;
}

}  // namespace tessera::dtensor
