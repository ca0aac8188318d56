#pragma once

#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/variable.h>

#include <memory>

/// The autograd node that receives a parameter's gradient. libtorch's AccumulateGrad adds it to
/// grad; this one passes the full gradient to the parameter's group, which reduces it and stores
/// the shard in grad.
namespace tessera::fsdp {

class ParamGroup;

/// libtorch 2.13 holds nodes by intrusive_ptr, 2.11 by shared_ptr.
using NodePtr = decltype(torch::autograd::Edge::function);
using WeakTensor = c10::weak_intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl>;

/// Becomes the gradient accumulator of `parameter`. The parameter references it weakly: the caller
/// must keep the returned pointer.
NodePtr install_gradient_node(const at::Tensor& parameter, std::weak_ptr<ParamGroup> group,
                              size_t index);

/// The node receives its gradient on the device's current stream from now on. Call it when a
/// forward uses the parameter: where the streams of a node and of those before it differ, autograd
/// orders them by events, for each gradient. libtorch creates its accumulators in each forward.
void use_current_stream(const NodePtr& gradient_node);

}  // namespace tessera::fsdp
