#include "tessera/fsdp/gradient_node.h"

#include <c10/core/impl/VirtualGuardImpl.h>

#include <limits>
#include <type_traits>

#include "tessera/base/errors.h"
#include "tessera/fsdp/param_group.h"

namespace tessera::fsdp {
namespace {

using torch::autograd::Node;
using torch::autograd::variable_list;

class GradientNode final : public Node {
 public:
  GradientNode(const at::Tensor& parameter, std::weak_ptr<ParamGroup> group, size_t index)
      : Node(/*sequence_nr=*/std::numeric_limits<uint64_t>::max()),  // runs as early as possible
        parameter_(parameter.getIntrusivePtr()),
        group_(std::move(group)),
        index_(index) {
    add_input_metadata(parameter);
  }

  variable_list apply(variable_list&& gradients) override {
    const auto group = group_.lock();
    const at::Tensor parameter(parameter_.lock());
    if (group == nullptr || !parameter.defined() || !gradients[0].defined()) return {};
    if (!parameter.requires_grad()) return {};
    if (gradients[0].requires_grad()) {
      throw NotSupported(
          "backward(create_graph) into the grad of a fully_shard parameter, which is reduced over "
          "the ranks and has no graph; take torch::autograd::grad for higher derivatives");
    }
    // Raw bytes are packed and sent, so a sparse layout (an embedding's) is made dense, and a lazy
    // conjugate or negation resolved first.
    at::Tensor& gradient = gradients[0];
    if (gradient.layout() != at::kStrided) gradient = gradient.to_dense();
    if (gradient.is_conj() || gradient.is_neg()) gradient = gradient.resolve_conj().resolve_neg();
    group->accept(index_, std::move(gradient));
    return {};
  }

  /// Hooks belong to the tensor and may be registered after this node was created.
  std::vector<std::unique_ptr<torch::autograd::FunctionPreHook>>& tensor_pre_hooks() noexcept
      override {
    const at::Tensor parameter(parameter_.lock());
    if (!parameter.defined()) return Node::tensor_pre_hooks();
    return torch::autograd::impl::hooks(parameter);
  }

  void use_current_stream() {
    const c10::Device device = input_metadata(0).device();
    const c10::impl::VirtualGuardImpl guard(device.type());
    if (input_metadata(0).stream() == guard.getStream(device)) return;
    const at::Tensor parameter(parameter_.lock());
    if (!parameter.defined()) return;
    clear_input_metadata();
    add_input_metadata(parameter);
  }

  std::string name() const override { return "tessera::fsdp::GradientNode"; }

 private:
  WeakTensor parameter_;
  std::weak_ptr<ParamGroup> group_;
  size_t index_;
};

template <class Pointer>
Pointer make_node(const at::Tensor& parameter, std::weak_ptr<ParamGroup> group, size_t index) {
  if constexpr (std::is_same_v<Pointer, std::shared_ptr<Node>>) {
    return std::make_shared<GradientNode>(parameter, std::move(group), index);
  } else {
    return c10::make_intrusive<GradientNode>(parameter, std::move(group), index);
  }
}

}  // namespace

NodePtr install_gradient_node(const at::Tensor& parameter, std::weak_ptr<ParamGroup> group,
                              size_t index) {
  using Weak = decltype(torch::autograd::AutogradMeta::grad_accumulator_);
  NodePtr node = make_node<NodePtr>(parameter, std::move(group), index);
  torch::autograd::impl::set_grad_accumulator(parameter, Weak(node));
  return node;
}

void use_current_stream(const NodePtr& gradient_node) {
  static_cast<GradientNode&>(*gradient_node).use_current_stream();
}

}  // namespace tessera::fsdp
