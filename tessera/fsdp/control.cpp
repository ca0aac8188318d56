#include "tessera/fsdp/control.h"

#include <torch/nn/module.h>

#include <functional>
#include <set>
#include <string_view>

#include "tessera/base/errors.h"
#include "tessera/fsdp/gather_scheduler.h"
#include "tessera/fsdp/param_group.h"

namespace tessera {

using fsdp::GroupOptions;
using fsdp::groups_in;
using fsdp::ParamGroup;

std::vector<std::shared_ptr<ParamGroup>> fsdp::groups_in(const torch::nn::Module& module) {
  std::vector<std::shared_ptr<ParamGroup>> out;
  std::set<const ParamGroup*> seen;
  for (const at::Tensor& parameter : module.parameters()) {
    auto group = group_of_parameter(parameter);
    if (group != nullptr && seen.insert(group.get()).second) out.push_back(std::move(group));
  }
  return out;
}

namespace {

/// Splits buckets whose members no longer have the same options.
void change_options(std::string_view what, const torch::nn::Module& module,
                    const std::function<void(GroupOptions&, const fsdp::DataMesh&)>& change) {
  const auto groups = groups_in(module);
  std::vector<GroupOptions> changed;
  for (const auto& group : groups) {
    group->scheduler()->leave_failed_backward();
    require(!group->scheduler()->in_backward(), what, " while backward runs");
    changed.push_back(group->options());
    change(changed.back(), group->mesh());
  }
  for (size_t i = 0; i < groups.size(); ++i) groups[i]->set_options(std::move(changed[i]));
  for (const auto& group : groups) {
    if (!group->bucket()->is_compatible()) group->scheduler()->split(*group->bucket());
  }
}

void set_prefetch(const torch::nn::Module& module, std::span<torch::nn::Module* const> modules,
                  ParamGroup::Prefetch ParamGroup::*which) {
  std::vector<std::weak_ptr<ParamGroup>> wanted;
  for (const torch::nn::Module* other : modules) {
    for (const auto& group : groups_in(*other)) wanted.push_back(group);
  }
  for (const auto& group : groups_in(module)) (*group).*which = wanted;
}

}  // namespace

void unshard(torch::nn::Module& module) {
  for (const auto& group : groups_in(module)) {
    group->scheduler()->gather(*group);
    group->set_unsharded(true);
  }
}

void reshard(torch::nn::Module& module) {
  const auto groups = groups_in(module);
  if (!groups.empty()) groups[0]->scheduler()->end_rounds();
  for (const auto& group : groups) group->bucket()->release();
}

UnshardHandle::UnshardHandle(std::span<const std::shared_ptr<ParamGroup>> groups)
    : groups_(groups.begin(), groups.end()) {}

void UnshardHandle::wait() {
  for (const auto& weak : std::exchange(groups_, {})) {
    const auto group = weak.lock();
    if (group == nullptr) continue;
    group->bucket()->finish_gather();
    if (group->bucket()->is_gathered()) group->set_unsharded(true);
  }
}

UnshardHandle unshard_async(torch::nn::Module& module) {
  const auto groups = groups_in(module);
  for (const auto& group : groups) {
    if (group->scheduler()->agrees()) {
      group->scheduler()->gather(*group);
    } else {
      group->bucket()->start_gather();
    }
  }
  return UnshardHandle(groups);
}

void set_reshard_after_forward(torch::nn::Module& module, std::variant<bool, int> reshard) {
  change_options("set_reshard_after_forward", module, [&](auto& options, const auto& mesh) {
    options.set_reshard_after_forward(reshard, mesh);
  });
}

void set_reshard_after_backward(torch::nn::Module& module, bool reshard) {
  change_options("set_reshard_after_backward", module,
                 [&](auto& options, const auto&) { options.reshard_after_backward = reshard; });
}

void set_modules_to_forward_prefetch(torch::nn::Module& module,
                                     std::span<torch::nn::Module* const> modules) {
  set_prefetch(module, modules, &ParamGroup::forward_prefetch);
}

void set_modules_to_backward_prefetch(torch::nn::Module& module,
                                      std::span<torch::nn::Module* const> modules) {
  set_prefetch(module, modules, &ParamGroup::backward_prefetch);
}

void set_requires_gradient_sync(torch::nn::Module& module, bool sync) {
  bool some_keep = false;
  for (const auto& group : groups_in(module)) {
    group->requires_gradient_sync = sync;
    some_keep = some_keep || !group->options().all_reduce_gradients;
  }
  if (sync && some_keep) set_requires_all_reduce(module, true);
}

void set_requires_all_reduce(torch::nn::Module& module, bool all_reduce) {
  change_options("set_requires_all_reduce", module, [&](auto& options, const auto& mesh) {
    options.all_reduce_gradients = all_reduce || mesh.replicate_group() == nullptr;
  });
}

void set_gradient_divide_factor(torch::nn::Module& module, double factor) {
  change_options("set_gradient_divide_factor", module,
                 [&](auto& options, const auto&) { options.set_gradient_divide_factor(factor); });
}

void set_reduce_unused_parameters(torch::nn::Module& module, bool reduce) {
  change_options("set_reduce_unused_parameters", module,
                 [&](auto& options, const auto&) { options.reduce_unused = reduce; });
  const auto groups = groups_in(module);
  if (!groups.empty()) groups[0]->scheduler()->agree_on(groups, reduce);
}

void set_collectives(torch::nn::Module& module, const Collectives& collectives) {
  const auto used = fsdp::with_defaults(collectives);
  change_options("set_collectives", module,
                 [&](auto& options, const auto&) { options.collectives = used; });
}

}  // namespace tessera
