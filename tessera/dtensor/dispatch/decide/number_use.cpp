#include "tessera/dtensor/dispatch/decide/number_use.h"

#include <algorithm>
#include <string_view>
#include <unordered_set>

namespace tessera::dtensor {
namespace {

/// Ops of libtorch, all overloads and also in place, whose numbers change values only. libtorch
/// tags further ones as pointwise.
const std::unordered_set<std::string_view>& ops_with_plain_numbers() {
  static const auto* names = new std::unordered_set<std::string_view>{
      // Elementwise, without the tag.
      "_add_relu", "add", "bernoulli", "celu", "div", "elu", "elu_backward", "fill", "floor_divide",
      "full_like", "hardshrink", "hardshrink_backward", "hardtanh", "hardtanh_backward",
      "huber_loss", "huber_loss_backward", "leaky_relu", "leaky_relu_backward", "logit_backward",
      "masked_fill", "mul", "native_dropout", "native_dropout_backward", "_fused_dropout",
      "_masked_scale", "new_full", "normal", "normal_functional", "remainder", "rrelu_with_noise",
      "rrelu_with_noise_backward", "rrelu_with_noise_functional", "rsub", "smooth_l1_loss",
      "smooth_l1_loss_backward", "softplus", "softplus_backward", "softshrink",
      "softshrink_backward", "sub", "threshold", "threshold_backward", "uniform",
      // beta * self + alpha * product, and what writes a number by index.
      "addbmm", "addmm", "_addmm_activation", "addmv", "addr", "baddbmm", "constant_pad_nd",
      "index_add", "index_fill", "scatter", "_unsafe_masked_index",
      // Norms, statistics, distances and attention.
      "_batch_norm_no_update", "_batch_norm_with_update", "_batch_norm_with_update_functional",
      "batch_norm_backward", "_native_batch_norm_legit", "_native_batch_norm_legit_functional",
      "_native_batch_norm_legit_no_training", "native_batch_norm", "native_batch_norm_backward",
      "native_group_norm", "native_layer_norm", "_fused_rms_norm", "linalg_vector_norm", "norm",
      "native_norm", "renorm", "embedding_renorm", "std", "std_mean", "var", "var_mean", "dist",
      "_scaled_dot_product_flash_attention_for_cpu",
      "_scaled_dot_product_flash_attention_for_cpu_backward", "_cdist_forward", "_cdist_backward",
      "_pdist_forward", "_pdist_backward"};
  return *names;
}

bool is_number(ArgKind kind) { return kind == ArgKind::scalar || kind == ArgKind::scalar_list; }

/// Whether all tensors that the op returns are arguments which it writes to in place.
bool returns_what_it_writes(const OpEntry& entry) {
  if (entry.written.empty() || entry.is_out) return false;
  for (size_t r = 0; r < entry.result_alias.size(); ++r) {
    if (entry.result_is_tensor[r] && entry.result_alias[r] < 0) return false;
  }
  return true;
}

}  // namespace

bool numbers_can_change_results(const OpEntry& entry, const c10::OperatorHandle& op) {
  if (std::ranges::none_of(entry.args, is_number) || returns_what_it_writes(entry)) return false;
  std::string_view name = entry.name;
  constexpr std::string_view kAten = "aten::";
  if (!name.starts_with(kAten)) return true;
  name = name.substr(kAten.size());
  name = name.substr(0, name.find('.'));
  if (op.hasTag(at::Tag::pointwise) || name.starts_with("_foreach_")) return false;
  return !ops_with_plain_numbers().contains(name);
}

bool has_meta_kernel(const c10::OperatorHandle& op) {
  return op.hasComputedKernelForDispatchKey(c10::DispatchKey::Meta);
}

void keep_metas_of_written(const OpEntry& entry, const Stack& stack,
                           std::span<std::optional<rules::ResultMeta>> metas) {
  if (std::ranges::none_of(entry.args, is_number) || !returns_what_it_writes(entry)) return;
  if (metas.size() != entry.result_alias.size()) return;
  const size_t base = stack.size() - entry.args.size();
  for (size_t r = 0; r < metas.size(); ++r) {
    if (entry.result_alias[r] < 0) continue;
    const c10::IValue& written = stack[base + static_cast<size_t>(entry.result_alias[r])];
    if (!written.isTensor() || !written.toTensor().defined()) continue;
    const at::Tensor& tensor = written.toTensor();
    metas[r] = rules::ResultMeta{{tensor.sizes().begin(), tensor.sizes().end()},
                                 {tensor.strides().begin(), tensor.strides().end()},
                                 static_cast<DType>(tensor.scalar_type()),
                                 0};
  }
}

}  // namespace tessera::dtensor
