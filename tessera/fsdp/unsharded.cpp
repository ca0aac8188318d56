#include "tessera/fsdp/unsharded.h"

#include <c10/core/GradMode.h>
#include <torch/csrc/autograd/custom_function.h>

#include "tessera/base/errors.h"
#include "tessera/dtensor/dispatch/lazy/unreduced_leaf.h"
#include "tessera/dtensor/tensor/lazy.h"
#include "tessera/fsdp/param_group.h"

namespace tessera {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::Variable;
using torch::autograd::variable_list;

/// Another tensor on the same memory: the gathered ones are reused by later gathers.
at::Tensor value_of(dtensor::LazyLocal& lazy) {
  const c10::AutoGradMode no_grad(false);
  at::Tensor value;
  try {
    value = lazy.unsharded().detach();
  } catch (...) {
    lazy.release();
    throw;
  }
  lazy.release();
  return value;
}

struct Unsharded : torch::autograd::Function<Unsharded> {
  static Variable forward(AutogradContext* ctx, const Variable& parameter) {
    ctx->set_materialize_grads(false);
    dtensor::refuse_gradient_of_unreduced_leaf(parameter, "unsharded_parameter");
    return value_of(*dtensor::lazy_local(parameter));
  }
  static variable_list backward(AutogradContext*, variable_list gradients) { return gradients; }
};

}  // namespace

at::Tensor unsharded_parameter(const at::Tensor& parameter) {
  dtensor::LazyLocal* lazy = dtensor::lazy_local(parameter);
  require(lazy != nullptr, "unsharded_parameter needs a parameter of fully_shard");
  if (parameter.requires_grad() && c10::GradMode::is_enabled()) return Unsharded::apply(parameter);
  return value_of(*lazy);
}

bool fsdp::is_in_compute(const at::Tensor& parameter) {
  dtensor::LazyLocal* lazy = dtensor::lazy_local(parameter);
  if (lazy == nullptr) return false;
  const auto group = group_of_root(*lazy);
  return group != nullptr && group->is_in_compute();
}

}  // namespace tessera
