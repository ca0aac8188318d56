// Gathers and reductions while ranks may use different parameters (fsdp/order/rank_agreement.h).
#include <c10/core/GradMode.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include <algorithm>
#include <utility>

#include "tessera/base/errors.h"
#include "tessera/fsdp/gather_scheduler.h"
#include "tessera/fsdp/param_group.h"

namespace tessera::fsdp {
namespace {

/// In a transform of torch.func, whose backward gives gradients to its own inputs alone.
bool is_in_transform() {
  return c10::impl::tls_is_dispatch_key_included(c10::DispatchKey::FuncTorchDynamicLayerFrontMode);
}

}  // namespace

/// Group numbers are identical on all ranks, and stay in the list after a group is destroyed,
/// because ranks may destroy it at different times.
void GatherScheduler::agree_on(std::span<const std::shared_ptr<ParamGroup>> groups, bool agrees) {
  for (const auto& group : groups) {
    if (agrees) {
      agreed_groups_.insert(group->number());
    } else {
      agreed_groups_.erase(group->number());
    }
  }
  const bool had = agreement_ != nullptr;
  agreement_.reset();
  forwards_ = std::make_shared<ForwardCounts>();
  if (!agreed_groups_.empty()) make_agreement();
  if (had == (agreement_ != nullptr)) return;
  order_ = {};  // what a rank has learned alone must not determine what it sends
  prefetched_.reset();
  for (Bucket* bucket : buckets()) bucket->release();
}

/// Over all ranks that any group communicates with.
void GatherScheduler::make_agreement() {
  const DeviceMesh* checked = nullptr;
  for (const ParamGroup* group : groups_) {
    const DeviceMesh& mesh = group->mesh().mesh();
    if (checked != nullptr && mesh == *checked) continue;
    checked = &mesh;
    const bool holds = std::ranges::all_of(
        mesh.ranks(), [&](int rank) { return widest_mesh_.coordinate_of(rank).has_value(); });
    if (!holds) {
      throw NotSupported(join_text("set_reduce_unused_parameters with groups on ", widest_mesh_,
                                   " and ", mesh,
                                   ": neither holds the ranks of both, which must agree"));
    }
  }
  agreement_ = std::make_unique<RankAgreement>(widest_mesh_);
}

void GatherScheduler::gather(const ParamGroup& group) {
  Bucket& bucket = *group.bucket();
  if (agreement_ != nullptr && bucket.needs_gather(group)) {
    take_part_in_round(static_cast<int64_t>(bucket.number()));
  }
  bucket.gather_for(group);
}

/// Returns false once all ranks have ended.
bool GatherScheduler::take_part_in_round(int64_t needed) {
  for (const auto& weak : std::exchange(gathered_for_others_, {})) {
    const auto bucket = weak.lock();
    if (bucket != nullptr && bucket.get() != order_.current()) bucket->release();
  }
  const auto numbers = agreement_->exchange(needed);
  for (const int64_t number : numbers) {
    const auto group = std::ranges::lower_bound(groups_, static_cast<size_t>(number), {},
                                                [](const ParamGroup* g) { return g->number(); });
    ensure(group != groups_.end() && std::cmp_equal((*group)->number(), number),
           "another rank gathers a group that this one does not have");
    Bucket& bucket = *(*group)->bucket();
    if (number != needed && bucket.needs_gather(**group)) {
      gathered_for_others_.push_back(bucket.weak_from_this());
    }
    bucket.restart_gather();
  }
  return !numbers.empty();
}

void GatherScheduler::end_rounds() {
  if (agreement_ == nullptr) return;
  const int64_t how = in_backward() ? RankAgreement::kEndedBackward : RankAgreement::kResharded;
  while (take_part_in_round(how)) {
  }
  if (!in_backward()) forwards_ = std::make_shared<ForwardCounts>();
}

/// A group that any rank has used is reduced on all ranks.
void GatherScheduler::agree_on_reductions() {
  if (agreement_ == nullptr) return;
  const auto forwards = std::exchange(forwards_, std::make_shared<ForwardCounts>());
  BackwardEnd mine = {.groups = std::vector<uint8_t>(groups_made_, 0),
                      .forwards = forwards->all,
                      .abandoned = forwards->abandoned};
  for (const ParamGroup* group : groups_) {
    mine.groups[group->number()] = static_cast<uint8_t>(
        (group->took_part() ? BackwardEnd::kTookPart : 0) |
        (group->requires_gradient_sync ? BackwardEnd::kReduces : BackwardEnd::kAccumulates));
  }
  const std::vector<uint8_t> any = agreement_->end_backward(mine);
  for (ParamGroup* group : groups_) {
    group->set_reduces_unused((any[group->number()] & BackwardEnd::kTookPart) != 0);
  }
}

/// A rank that used no parameter enters the backward here, and serves the others at its end.
void GatherScheduler::watch_forward(std::span<const at::Tensor> outputs, bool used_parameters) {
  if (agreement_ == nullptr || !c10::GradMode::is_enabled() || is_in_transform()) return;
  enter_backward();  // if this is a recomputation
  if (in_backward()) return;
  const bool records = std::ranges::any_of(
      outputs, [](const at::Tensor& output) { return output.defined() && output.requires_grad(); });
  if (!records && used_parameters) return;  // frozen layers: no backward is expected
  const auto forward = std::make_shared<WatchedForward>(forwards_);
  for (const at::Tensor& output : outputs) {
    if (!output.defined() || !output.requires_grad()) continue;
    if (output.is_leaf() && group_of_parameter(output) != nullptr) continue;
    const auto hook = output.register_hook([forward, weak = weak_from_this()](const at::Tensor&) {
      forward->reached = true;
      if (const auto alive = weak.lock()) alive->enter_backward();
    });
    // It was an input, or belongs to the program, and may outlive the step.
    if (output.is_leaf()) leaf_hooks_.emplace_back(output.getIntrusivePtr(), hook);
  }
}

void GatherScheduler::remove_leaf_hooks() {
  for (const auto& [weak, hook] : std::exchange(leaf_hooks_, {})) {
    const at::Tensor leaf(weak.lock());
    if (leaf.defined()) leaf.remove_hook(hook);
  }
}

}  // namespace tessera::fsdp
