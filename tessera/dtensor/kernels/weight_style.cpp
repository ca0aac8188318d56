#include "tessera/dtensor/kernels/weight_style.h"

#include <mutex>
#include <unordered_map>

#include "tessera/base/errors.h"
#include "tessera/dtensor/tensor/sharded_tensor.h"
#include "tessera/dtensor/tensor/use_key.h"

namespace tessera::dtensor {
namespace {

using WeakWeight = c10::weak_intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl>;

struct StyledWeight {
  WeakWeight weight;  // the address is not reused while it is here
  std::shared_ptr<const WeightStyle> style;
};

struct StyleTable {
  std::mutex mutex;
  std::unordered_map<const c10::TensorImpl*, StyledWeight> weights;
  size_t sweep_at = 64;
};

StyleTable& style_table() {
  static auto* instance = new StyleTable();
  return *instance;
}

/// Removes weights that were freed, whenever their number may have doubled.
void sweep(StyleTable& table) {
  if (table.weights.size() < table.sweep_at) return;
  std::erase_if(table.weights, [](const auto& item) { return item.second.weight.expired(); });
  table.sweep_at = std::max<size_t>(64, table.weights.size() * 2);
}

}  // namespace

void StyledCall::run() const {
  const c10::DispatchKeySet below(c10::DispatchKeySet::FULL_AFTER, kUseKey);
  op.redispatchBoxed(keys & below, &stack);
}

c10::IValue& StyledCall::argument(size_t index) const {
  return stack[stack.size() - op.schema().arguments().size() + index];
}

void set_weight_style(const at::Tensor& weight, std::shared_ptr<const WeightStyle> style) {
  require(sharded_meta(weight) != nullptr, "a style needs a sharded weight");
  StyleTable& table = style_table();
  const c10::TensorImpl* impl = weight.unsafeGetTensorImpl();
  if (style != nullptr && !has_use_key(weight)) add_use_key(weight);
  const std::lock_guard lock(table.mutex);
  if (style == nullptr) {
    table.weights.erase(impl);
    return;
  }
  sweep(table);
  table.weights.insert_or_assign(
      impl, StyledWeight{WeakWeight(weight.getIntrusivePtr()), std::move(style)});
}

std::shared_ptr<const WeightStyle> weight_style(const at::Tensor& weight) {
  StyleTable& table = style_table();
  const std::lock_guard lock(table.mutex);
  const auto at = table.weights.find(weight.unsafeGetTensorImpl());
  return at == table.weights.end() ? nullptr : at->second.style;
}

}  // namespace tessera::dtensor
