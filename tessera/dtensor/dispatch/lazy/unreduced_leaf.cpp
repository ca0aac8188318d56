#include "tessera/dtensor/dispatch/lazy/unreduced_leaf.h"

#include <c10/core/GradMode.h>
#include <c10/util/SmallVector.h>
#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/functions/accumulate_grad.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>
#include <memory>
#include <string>
#include <typeinfo>
#include <unordered_set>
#include <utility>

#include "tessera/base/errors.h"
#include "tessera/base/text.h"
#include "tessera/dtensor/tensor/lazy.h"

namespace tessera::dtensor {
namespace {

using torch::autograd::AccumulateGrad;
using torch::autograd::Node;
using torch::autograd::variable_list;

/// Called when the node accumulates a gradient in `leaf`; not if torch.autograd.grad asks for it.
class RefuseGradient final : public torch::autograd::FunctionPreHook {
 public:
  /// `leaf` belongs to the node, which owns this hook.
  RefuseGradient(const at::Tensor& leaf, std::string_view op) : leaf_(leaf), op_(op) {}

  variable_list operator()(const variable_list& gradients) override {
    for (const at::Tensor& gradient : gradients) {
      if (gradient.defined() && !is_reduced(gradient)) refuse();
    }
    return gradients;
  }

 private:
  bool is_reduced(const at::Tensor& gradient) const {
    const ShardedMeta* meta = sharded_meta(gradient);
    return meta != nullptr && meta->sharding().mesh() == sharded_meta(leaf_)->sharding().mesh();
  }
  [[noreturn]] void refuse() const {
    throw NotSupported(join_text(
        "backward of ", op_, " into a leaf that was made from parameters of fully_shard (",
        sharded_meta(leaf_)->sharding().to_text(),
        ") but is in no group: its gradient would not be reduced and would differ between ranks. "
        "Make it of the whole value, in a module that is sharded as well: "
        "module.w = nn.Parameter(tessera.full_tensor(weight.detach()).clone()); "
        "tessera.fully_shard(module, mesh). For the gradient of this rank alone, use "
        "torch.autograd.grad"));
  }

  const at::Tensor& leaf_;
  std::string op_;
};

/// Whether the node accumulates gradients in a lazy tensor. Parameters of fully_shard have another
/// node (fsdp/gradient_node.h).
bool is_lazy_leaf(const Node& node) {
  if (typeid(node) != typeid(AccumulateGrad)) return false;
  const at::Tensor& leaf = static_cast<const AccumulateGrad&>(node).variable;
  return lazy_local(leaf) != nullptr && !sharded_meta(leaf)->is_made_in_backward();
}

using Found = FromUnreducedLeaf::NodePtr;  // nullptr: none

Found lazy_leaf_among(c10::SmallVector<const Node*, 8> left) {
  std::unordered_set<const Node*> seen;
  while (!left.empty()) {
    const Node* node = left.pop_back_val();
    if (!seen.insert(node).second) continue;
    for (const auto& edge : node->next_edges()) {
      if (!edge.function) continue;
      if (is_lazy_leaf(*edge.function)) return edge.function;
      left.push_back(edge.function.get());
    }
  }
  return nullptr;
}

/// The nodes of views and casts have one input each.
Found lazy_leaf_before(Found node) {
  while (node != nullptr && node->num_outputs() == 1) node = node->next_edge(0).function;
  if (node == nullptr) return nullptr;
  if (node->num_outputs() != 0) return lazy_leaf_among({node.get()});
  return is_lazy_leaf(*node) ? node : nullptr;
}

/// The node that accumulates the gradient of `tensor` in a lazy tensor.
Found lazy_leaf(const at::Tensor& tensor) {
  const torch::autograd::AutogradMeta* meta = torch::autograd::impl::get_autograd_meta(tensor);
  if (meta == nullptr || !tensor.requires_grad()) return nullptr;
  if (meta->grad_fn_) return lazy_leaf_before(meta->grad_fn_);
  if (meta->requires_grad_) {  // has the node if the op has a derivative, which autograd records
    Found node = torch::autograd::impl::try_get_grad_accumulator(tensor);
    return node != nullptr && is_lazy_leaf(*node) ? node : nullptr;
  }
  // A view that was taken without grad mode. In forward of a Function, its base gets the gradient.
  const auto* view = torch::autograd::impl::get_view_autograd_meta(tensor);
  const bool is_in_function = !c10::GradMode::is_enabled();
  if (view == nullptr || !view->has_bw_view() || !is_in_function) return nullptr;
  return lazy_leaf(view->get_backward_view().base_);
}

/// Also if autograd does not record what `tensor` was computed from.
Found lazy_leaf_behind(const at::Tensor& tensor) {
  if (c10::GradMode::is_enabled() || tensor.requires_grad()) return lazy_leaf(tensor);
  const auto* made = dynamic_cast<const FromUnreducedLeaf*>(&lazy_local(tensor)->root());
  return made != nullptr ? made->leaf() : nullptr;
}

}  // namespace

void refuse_gradient_of_unreduced_leaf(const at::Tensor& tensor, std::string_view op) {
  const Found node = lazy_leaf_behind(tensor);
  if (node == nullptr) return;
  const bool refuses = std::ranges::any_of(node->pre_hooks(), [](const auto& hook) {
    return dynamic_cast<const RefuseGradient*>(hook.get()) != nullptr;
  });
  if (refuses) return;
  const at::Tensor& leaf = static_cast<const AccumulateGrad&>(*node).variable;
  node->add_pre_hook(std::make_unique<RefuseGradient>(leaf, op));
}

void FromUnreducedLeaf::add_operand(const at::Tensor& operand) {
  if (c10::GradMode::is_enabled()) return;
  if (Found node = lazy_leaf_behind(operand)) accumulates_ = decltype(accumulates_)(node);
}

}  // namespace tessera::dtensor
