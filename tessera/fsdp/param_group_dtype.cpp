// The dtype that the parameters of a group report.
#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/variable.h>

#include "tessera/dtensor/dispatch/lazy/lazy_dispatch.h"
#include "tessera/dtensor/dispatch/lazy/lazy_dtypes.h"
#include "tessera/fsdp/param_group.h"

namespace tessera::fsdp {

void ParamGroup::enter_compute() {
  has_scopes_ = true;
  if (++computing_ == 1 && !in_backward_) report_dtypes();
}

void ParamGroup::leave_compute() {
  if (--computing_ == 0 && !in_backward_) report_dtypes();
}

void ParamGroup::set_in_backward(bool in_backward) {
  if (in_backward_ == in_backward) return;
  in_backward_ = in_backward;
  if (!in_backward) wait_for_gradients();
  if (computing_ == 0) report_dtypes();
}

void ParamGroup::set_unsharded(bool unsharded) {
  if (unsharded_ == unsharded) return;
  unsharded_ = unsharded;
  if (!computes()) report_dtypes();
}

void ParamGroup::report_dtypes() const {
  if (!switches_dtype_) return;
  for (size_t i = 0; i < params_.size(); ++i) {
    const at::Tensor tensor = alive(params_[i]);
    if (!tensor.defined()) continue;
    dtensor::report_dtype(
        tensor, reports_compute_dtype() ? compute_dtype(i) : params_[i].shard.scalar_type());
  }
}

/// Such hooks step optimizers, which operate on the parameter at rest.
void ParamGroup::run_hook_at_rest(const Param& param, const at::Tensor& tensor) const {
  auto& hook = torch::autograd::impl::post_acc_grad_hooks(tensor);
  if (hook == nullptr) return;
  const dtensor::ReportedDtype at_rest(tensor, param.shard.scalar_type());
  const dtensor::OutsideBackward outside;
  (*hook)(tensor);
}

}  // namespace tessera::fsdp
