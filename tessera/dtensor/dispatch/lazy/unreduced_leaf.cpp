#include "tessera/dtensor/dispatch/lazy/unreduced_leaf.h"

#include <c10/core/GradMode.h>
#include <c10/util/SmallVector.h>
#include <torch/csrc/autograd/functions/accumulate_grad.h>
#include <torch/csrc/autograd/variable.h>

#include <typeinfo>
#include <unordered_set>

#include "tessera/base/errors.h"
#include "tessera/base/text.h"
#include "tessera/dtensor/tensor/lazy.h"

namespace tessera::dtensor {
namespace {

using torch::autograd::AccumulateGrad;
using torch::autograd::Node;

/// The lazy tensor that the node accumulates a gradient in, or nullptr. Parameters of fully_shard
/// have another node (fsdp/gradient_node.h).
const at::Tensor* lazy_leaf_of(const Node& node) {
  if (typeid(node) != typeid(AccumulateGrad)) return nullptr;
  const at::Tensor& leaf = static_cast<const AccumulateGrad&>(node).variable;
  return lazy_local(leaf) != nullptr ? &leaf : nullptr;
}

const at::Tensor* lazy_leaf_among(c10::SmallVector<const Node*, 8> left) {
  std::unordered_set<const Node*> seen;
  while (!left.empty()) {
    const Node* node = left.pop_back_val();
    if (!seen.insert(node).second) continue;
    if (const at::Tensor* leaf = lazy_leaf_of(*node)) return leaf;
    for (const auto& edge : node->next_edges()) {
      if (edge.function) left.push_back(edge.function.get());
    }
  }
  return nullptr;
}

/// The nodes of views and casts have one input each.
const at::Tensor* lazy_leaf_before(const Node* node) {
  while (node != nullptr && node->num_outputs() == 1) node = node->next_edge(0).function.get();
  if (node == nullptr) return nullptr;
  return node->num_outputs() == 0 ? lazy_leaf_of(*node) : lazy_leaf_among({node});
}

/// Defined if a gradient of `tensor` is accumulated in a lazy tensor.
at::Tensor lazy_leaf(const at::Tensor& tensor) {
  const torch::autograd::AutogradMeta* meta = torch::autograd::impl::get_autograd_meta(tensor);
  if (meta == nullptr || !tensor.requires_grad()) return {};
  if (meta->grad_fn_) {
    const at::Tensor* leaf = lazy_leaf_before(meta->grad_fn_.get());
    return leaf != nullptr ? *leaf : at::Tensor();
  }
  if (meta->requires_grad_) {  // has the node if the op has a derivative, which autograd records
    const auto node = torch::autograd::impl::try_get_grad_accumulator(tensor);
    const at::Tensor* leaf = node ? lazy_leaf_of(*node) : nullptr;
    return leaf != nullptr ? *leaf : at::Tensor();
  }
  // A view that was taken without grad mode. In forward of a Function, its base gets the gradient.
  const auto* view = torch::autograd::impl::get_view_autograd_meta(tensor);
  const bool is_in_function = !c10::GradMode::is_enabled();
  if (view == nullptr || !view->has_bw_view() || !is_in_function) return {};
  return lazy_leaf(view->get_backward_view().base_);
}

/// Also if autograd does not record what `tensor` was computed from.
at::Tensor lazy_leaf_behind(const at::Tensor& tensor) {
  if (c10::GradMode::is_enabled() || tensor.requires_grad()) return lazy_leaf(tensor);
  const auto* made = dynamic_cast<const FromUnreducedLeaf*>(&lazy_local(tensor)->root());
  return made != nullptr ? made->leaf() : at::Tensor();
}

}  // namespace

void refuse_unreduced_leaf(const at::Tensor& tensor, std::string_view op) {
  const at::Tensor leaf = lazy_leaf_behind(tensor);
  if (!leaf.defined()) return;
  throw NotSupported(join_text(
      op, " with a leaf that requires grad and was made from parameters of fully_shard (",
      sharded_meta(leaf)->sharding().to_text(),
      ") but is in no group: its gradient would not be reduced and would differ between ranks. "
      "Make it of the whole value, in a module that is sharded as well: "
      "module.w = nn.Parameter(tessera.full_tensor(weight.detach()).clone()); "
      "tessera.fully_shard(module, mesh). To compute with it but not its gradient, detach it"));
}

void FromUnreducedLeaf::add_operand(const at::Tensor& operand) {
  if (c10::GradMode::is_enabled()) return;
  const at::Tensor leaf = lazy_leaf_behind(operand);
  if (leaf.defined())
    accumulates_ = torch::autograd::impl::get_autograd_meta(leaf)->grad_accumulator_;
}

at::Tensor FromUnreducedLeaf::leaf() const {
  const auto node = accumulates_.lock();
  const at::Tensor* leaf = node ? lazy_leaf_of(*node) : nullptr;
  return leaf != nullptr ? *leaf : at::Tensor();
}

}  // namespace tessera::dtensor
