#pragma once

#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/variable.h>

#include <memory>

/// The node at which a parameter's gradient arrives. libtorch's own adds it to grad; this one hands
/// the whole gradient to the parameter's group, which reduces it and leaves the shard in grad.
namespace tessera::fsdp {

class ParamGroup;

/// libtorch 2.13 holds nodes by intrusive_ptr, 2.11 by shared_ptr.
using NodePtr = decltype(torch::autograd::Edge::function);
using WeakTensor = c10::weak_intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl>;

/// Becomes the accumulator of `parameter`, which holds it weakly: keep what is returned.
NodePtr install_gradient_node(const at::Tensor& parameter, std::weak_ptr<ParamGroup> group,
                              size_t index);

}  // namespace tessera::fsdp
