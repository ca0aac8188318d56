// Gathers and reductions while ranks may use different parameters (fsdp/order/rank_agreement.h).
#include <algorithm>
#include <utility>

#include "tessera/base/errors.h"
#include "tessera/fsdp/gather_scheduler.h"
#include "tessera/fsdp/param_group.h"

namespace tessera::fsdp {

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
  while (take_part_in_round(RankAgreement::kEnded)) {
  }
}

/// A group that any rank has used is reduced on all ranks.
void GatherScheduler::agree_on_reductions() {
  if (agreement_ == nullptr) return;
  std::vector<uint8_t> took_part(groups_made_, 0);
  for (const ParamGroup* group : groups_) took_part[group->number()] = group->took_part() ? 1 : 0;
  took_part = agreement_->any(took_part);
  for (ParamGroup* group : groups_) group->set_reduces_unused(took_part[group->number()] != 0);
}

}  // namespace tessera::fsdp
