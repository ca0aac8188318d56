#pragma once

#include <ATen/core/Tensor.h>
#include <torch/csrc/autograd/variable.h>

#include <string_view>

/// Leaves made from lazy tensors, such as a soft prompt from the rows of an embedding:
///
///   w = nn.Parameter(emb.weight.detach().clone())   sharded, computed with as a whole, in no group
///   (x @ w.t()).sum().backward()                    w.grad would be the gradient of this rank's x
///
/// The gradient of a parameter of fully_shard goes to its group, which reduces it. That of such a
/// leaf would be accumulated as it is: plain, whole and different on each rank, and an optimizer
/// would step each shard by another gradient. So the backward that would accumulate it is refused.
///
/// Still allowed: ops with sharded tensors of its mesh, whose gradients are sharded; leaves that do
/// not require grad, or that autograd does not record; writes; torch.autograd.grad, which
/// accumulates nothing; and leaves that a backward makes, whose gradients it passes on itself:
///
///   checkpoint(f, x, emb.weight, use_reentrant=True)   recomputes with emb.weight.detach()
namespace tessera::dtensor {

/// Makes a backward throw NotSupported if it accumulates a gradient of `tensor`, which `op`
/// computes with as a whole, in such a leaf: `tensor` itself, or one that it is a view, a cast or a
/// result of. Sends nothing; all ranks that run the same program throw. Call it when autograd has
/// taken the edges of the op's arguments: below its kernels, or in forward of a Function. Costs
/// some nanoseconds for each node from a view of a parameter to the parameter.
void refuse_gradient_of_unreduced_leaf(const at::Tensor& tensor, std::string_view op);

/// The leaf that a result which autograd does not record was computed from. In forward of a
/// Function autograd records nothing, but the Function may return a gradient of the leaf:
///
///   def forward(ctx, x, w): return x @ w.to(x.dtype).t()      w.to(...) does not require grad
///
/// Base of the LazyLocal of such results. Refers to the leaf as long as a graph does.
class FromUnreducedLeaf {
 public:
  using NodePtr = decltype(torch::autograd::Edge::function);
  virtual ~FromUnreducedLeaf() = default;
  /// Adds the leaf that `operand` is, if it is one, or was computed from.
  void add_operand(const at::Tensor& operand);
  /// The node that accumulates the leaf's gradient; nullptr: none.
  NodePtr leaf() const { return accumulates_.lock(); }

 private:
  decltype(torch::autograd::AutogradMeta::grad_accumulator_) accumulates_{NodePtr()};
};

}  // namespace tessera::dtensor
