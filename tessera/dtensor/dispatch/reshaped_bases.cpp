#include "tessera/dtensor/dispatch/reshaped_bases.h"

#include <c10/core/GradMode.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>

#include "tessera/base/errors.h"
#include "tessera/dtensor/dispatch/op/operands.h"
#include "tessera/dtensor/tensor/sharded_tensor.h"
#include "tessera/dtensor/tensor/view_origin.h"

namespace tessera::dtensor {

constinit std::atomic<bool> bases_were_reshaped{false};

namespace {

/// The tensor whose shape the functions of views refer to: the base of a view, or itself.
const at::Tensor& base_of(const at::Tensor& tensor) {
  const auto* meta = torch::autograd::impl::get_view_autograd_meta(tensor);
  return meta != nullptr && meta->has_bw_view() ? meta->get_backward_view().base_ : tensor;
}

bool is_replayed_wrongly(const at::Tensor& written) {
  const at::Tensor& base = base_of(written);
  const ShardedMeta* meta = sharded_meta(base);
  if (meta == nullptr || !meta->was_reshaped()) return false;
  return !base.is_same(written) || may_have_views(base);
}

}  // namespace

bool may_have_views(const at::Tensor& base) {
  const ShardedMeta* meta = sharded_meta(base);
  const at::Tensor& local = meta->local();
  return (local.has_storage() && local.storage().use_count() > 1) || has_gathered_views(*meta);
}

void note_reshaped_base(const at::Tensor& base) {
  const_cast<ShardedMeta*>(sharded_meta(base))->set_reshaped();  // the object itself is not const
  bases_were_reshaped.store(true, std::memory_order_relaxed);
}

void refuse_replay_of_reshaped(const OpEntry& entry, const torch::jit::Stack& stack) {
  if (!c10::GradMode::is_enabled()) return;
  const std::vector<Operand> operands = operands_of(entry, stack);
  if (std::ranges::none_of(operands, [](const Operand& operand) {
        return operand.tensor->defined() && operand.tensor->requires_grad();
      })) {
    return;
  }
  for (const Operand& operand : operands) {
    if (!operand.written || operand.sharded == nullptr) continue;
    if (!is_replayed_wrongly(*operand.tensor)) continue;
    throw NotSupported(join_text(
        entry.name, " of ", operand.sharded->sharding(),
        ", whose base changed its shape in place (transpose_, t_, unsqueeze_, squeeze_) after "
        "views "
        "of it were taken: the gradient of this write would be taken from the new shape; use the "
        "form that returns a view (x = x.transpose(0, 1))"));
  }
}

}  // namespace tessera::dtensor
