#include "tessera/fsdp/compute_dtype.h"

#include <torch/csrc/autograd/variable.h>
#include <torch/nn/module.h>

#include <algorithm>
#include <set>

#include "tessera/fsdp/gather_scheduler.h"
#include "tessera/fsdp/param_group.h"

namespace tessera {

fsdp::ComputeDtypeScope::ComputeDtypeScope(std::span<const at::Tensor> parameters) {
  std::set<const ParamGroup*> seen;
  for (const at::Tensor& parameter : parameters) {
    const auto group = group_of_parameter(parameter);
    if (group != nullptr && seen.insert(group.get()).second) {
      groups_.push_back(group);
    }
  }
}

bool fsdp::ComputeDtypeScope::switches_dtype() const {
  return std::ranges::any_of(groups_, [](const auto& weak) {
    const auto group = weak.lock();
    return group != nullptr && group->switches_dtype();
  });
}

void fsdp::ComputeDtypeScope::enter() {
  const GatherScheduler* last = nullptr;
  for (const auto& weak : groups_) {
    const auto group = weak.lock();
    if (group == nullptr) continue;
    if (GatherScheduler* scheduler = group->scheduler().get(); scheduler != last) {
      last = scheduler;
      scheduler->leave_failed_backward();
      if (!scheduler->in_backward()) scheduler->note_thread();
      uses_before_ = scheduler->uses();
    }
    group->enter_compute();
  }
}

void fsdp::ComputeDtypeScope::leave() {
  for (const auto& weak : groups_) {
    if (const auto group = weak.lock()) group->leave_compute();
  }
}

void fsdp::ComputeDtypeScope::rest() const {
  for (const auto& weak : groups_) {
    if (const auto group = weak.lock()) group->set_unsharded(false);
  }
}

void fsdp::ComputeDtypeScope::watch(std::span<const at::Tensor> outputs) const {
  std::shared_ptr<GatherScheduler> scheduler;
  for (const auto& weak : groups_) {
    const auto group = weak.lock();
    if (group == nullptr) continue;
    if (group->scheduler()->agrees()) {
      group->scheduler()->watch_forward(outputs, group->scheduler()->uses() != uses_before_);
      return;
    }
    if (group->switches_dtype()) scheduler = group->scheduler();
  }
  if (scheduler == nullptr || scheduler->in_backward()) return;
  for (const at::Tensor& output : outputs) {
    // A leaf, which may be a parameter, would keep the hook beyond this step.
    if (!output.defined() || !output.requires_grad() || output.is_leaf()) continue;
    output.register_hook([weak = std::weak_ptr(scheduler)](const at::Tensor&) {
      if (const auto alive = weak.lock()) alive->enter_backward();
    });
  }
}

ComputeDtypeGuard::ComputeDtypeGuard(const torch::nn::Module& module)
    : scope_(module.parameters()) {
  scope_.enter();
}

}  // namespace tessera
