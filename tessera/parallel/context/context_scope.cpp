// ContextParallel: under it, scaled_dot_product_attention of sharded tensors is
// context_parallel_attention.
#include "tessera/base/errors.h"
#include "tessera/dtensor/dtensor.h"
#include "tessera/dtensor/kernels/register.h"
#include "tessera/parallel/context/attention_placement.h"
#include "tessera/parallel/context/context_parallel.h"

namespace tessera {
namespace {

thread_local const ContextParallel* innermost = nullptr;

bool rows_are_sharded_by(const at::Tensor& key, const std::string& axis) {
  if (key.dim() != 4 || !is_dtensor(key)) return false;
  const Sharding& has = sharding(key);
  return has.mesh().has_axis(axis) &&
         has.placement(has.mesh().axis(axis)).is_sharded(parallel::kRowDim);
}

/// scaled_dot_product_attention(query, key, value, attn_mask, dropout_p, is_causal, scale,
/// enable_gqa). Returns false for calls that libtorch handles, or rejects.
bool attend_in_scope(const dtensor::OpEntry& entry, const c10::OperatorHandle&,
                     torch::jit::Stack& stack) {
  const ContextParallel* scope = innermost;
  if (scope == nullptr) return false;
  const auto args = torch::jit::last(stack, entry.args.size());
  const at::Tensor query = args[0].toTensor(), key = args[1].toTensor(), value = args[2].toTensor();
  if (query.dim() != 4 || !is_dtensor(query) || !is_dtensor(key) || !is_dtensor(value)) {
    return false;
  }
  // Rows that were gathered still have their order: libtorch would mask them by row.
  if (scope->masks_by_row() && !rows_are_sharded_by(key, scope->axis())) return false;
  const auto mask = args[3].toOptional<at::Tensor>().value_or(at::Tensor());
  const bool causal = args[5].toBool();
  const bool grouped = args[7].toBool();
  if ((mask.defined() && causal) || (query.size(1) != key.size(1) && !grouped)) return false;
  if (args[4].toDouble() != 0) {
    throw NotSupported(
        "scaled_dot_product_attention under ContextParallel: no kernel draws dropout by global "
        "position; set dropout_p to 0");
  }
  AttentionOptions attention{.is_causal = causal, .mask = mask};
  if (!args[6].isNone()) attention.scale = args[6].toDouble();
  const at::Tensor out = context_parallel_attention(query, key, value, attention, scope->options());
  torch::jit::drop(stack, entry.args.size());
  torch::jit::push(stack, out);
  return true;
}

// After the kernels, which register_kernels() installs once.
const bool kAttentionInstalled =
    (dtensor::register_kernels(),
     dtensor::set_special_case("aten::scaled_dot_product_attention", attend_in_scope), true);

}  // namespace

ContextParallel::ContextParallel(std::string axis, ContextParallelOptions options)
    : axis_(std::move(axis)), options_(std::move(options)), outer_(innermost) {
  innermost = this;
}

ContextParallel::~ContextParallel() { innermost = outer_; }

bool ContextParallel::masks_by_row() const {
  return options_.order.is_natural() && options_.documents.empty();
}

const ContextParallel* ContextParallel::current() { return innermost; }

}  // namespace tessera
