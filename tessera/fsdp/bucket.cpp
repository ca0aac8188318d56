#include "tessera/fsdp/bucket.h"

#include <ATen/ops/cat.h>

#include <algorithm>

#include "tessera/fsdp/gather_scheduler.h"
#include "tessera/fsdp/param_group.h"
#include "tessera/observe/call_history.h"

namespace tessera::fsdp {
namespace {

template <class LayoutOf>
std::shared_ptr<const FlatLayout> joined(std::span<ParamGroup* const> groups, const LayoutOf& of) {
  if (groups.size() == 1) return of(*groups[0]);
  std::vector<const FlatLayout*> layouts;
  for (const ParamGroup* group : groups) layouts.push_back(of(*group).get());
  return std::make_shared<FlatLayout>(FlatLayout::joined(layouts));
}

/// Increases with every write to any of its shards.
int64_t version_of_shards(const ParamGroup& member) {
  int64_t sum = 0;
  for (const at::Tensor& piece : member.pieces()) {
    sum += piece.unsafeGetTensorImpl()->version_counter().current_version();
  }
  return sum;
}

}  // namespace

Bucket::Bucket(std::vector<ParamGroup*> members)
    : members_(std::move(members)),
      gather_layout_(joined(members_, [](const ParamGroup& g) { return g.gather_layout(); })),
      reduce_layout_(joined(members_, [](const ParamGroup& g) { return g.reduce_layout(); })),
      sources_(gather_layout_->slots().size()),
      gathered_(gather_layout_) {
  size_t first_param = 0;
  for (const ParamGroup* member : members_) {
    const FlatLayout& own = *member->gather_layout();
    for (size_t s = 0; s < own.slots().size(); ++s) {
      const size_t slot = gather_layout_->slot_of(first_param + own.slots()[s].params[0]);
      sources_[slot].push_back({member, s});
    }
    first_param += member->params();
  }
}

std::shared_ptr<Bucket> Bucket::make(std::vector<ParamGroup*> members) {
  std::shared_ptr<Bucket> bucket(new Bucket(std::move(members)));
  size_t place = 0;
  size_t first_param = 0;
  for (ParamGroup* member : bucket->members_) {
    member->join_bucket(bucket, place++, first_param);
    first_param += member->params();
  }
  return bucket;
}

bool Bucket::can_join(const ParamGroup& a, const ParamGroup& b) {
  return a.mesh() == b.mesh() && a.device() == b.device() &&
         a.options().can_share_collectives(b.options());
}

bool Bucket::is_compatible() const {
  return std::ranges::all_of(members_, [this](auto* one) { return can_join(*members_[0], *one); });
}

const GroupOptions& Bucket::options() const { return members_[0]->options(); }
const DataMesh& Bucket::mesh() const { return members_[0]->mesh(); }
size_t Bucket::number() const { return members_[0]->number(); }

bool Bucket::is_current() const {
  return std::ranges::all_of(members_, [this](auto* member) { return is_current(*member); });
}

bool Bucket::is_current(const ParamGroup& member) const {
  return !versions_.empty() && versions_[member.place_in_bucket()] == version_of_shards(member);
}

/// With the layout's dtype; if several groups share the slot, their pieces are concatenated.
at::Tensor Bucket::shard_of_slot(size_t slot) const {
  const at::ScalarType dtype = gather_layout_->slots()[slot].dtype;
  c10::SmallVector<at::Tensor, 1> pieces;
  for (const PieceOf& source : sources_[slot]) {
    source.member->require_memory();
    const at::Tensor& piece = source.member->pieces()[source.slot];
    const c10::Device device = source.member->device();
    pieces.push_back(piece.device() == device ? piece
                                              : piece.to(device, piece.scalar_type(), true));
  }
  const at::Tensor shard = pieces.size() == 1 ? pieces[0] : at::cat(pieces);
  return shard.scalar_type() == dtype ? shard : shard.to(dtype);
}

void Bucket::start(bool async) {
  GatherScheduler& scheduler = *members_[0]->scheduler();
  std::vector<at::Tensor> sent = parts_;
  if (parts_.empty()) {
    versions_.clear();
    for (const ParamGroup* member : members_) versions_.push_back(version_of_shards(*member));
    for (size_t s = 0; s < sources_.size(); ++s) sent.push_back(shard_of_slot(s));
  }
  // A rank whose shards alone were written gathers a bucket again that others still have: its call
  // must not match their next one.
  const comm::CallHistory history(members_[0]->mark() | kGatherMark);
  const comm::Group& group = parts_.empty() ? *mesh().shard_group() : *options().smaller_group;
  gathered_.start(std::move(sent),
                  {group,
                   mesh().shard_name(),
                   *options().collectives,
                   scheduler.bytes(),
                   {scheduler.log(), StepLog::What::gather, number()}},
                  async);
}

/// On an axis of one rank.
void Bucket::copy_shards() {
  versions_.clear();
  for (const ParamGroup* member : members_) versions_.push_back(version_of_shards(*member));
  std::vector<std::vector<at::Tensor>> pieces(sources_.size());
  for (size_t s = 0; s < sources_.size(); ++s) {
    for (const PieceOf& source : sources_[s]) {
      pieces[s].push_back(source.member->pieces()[source.slot]);
    }
  }
  gathered_.copy(pieces, members_[0]->device(), *options().collectives,
                 members_[0]->scheduler()->bytes());
}

bool Bucket::computes_on_copy() const {
  return std::ranges::any_of(members_, [](auto* member) { return member->computes_on_copy(); });
}

bool Bucket::start_gather() {
  if (mesh().shard_group() == nullptr) return false;
  if (!is_current()) release();
  if (gathered_.stage() != Gathered::Stage::released) return false;
  start(/*async=*/true);
  return true;
}

bool Bucket::needs_gather(const ParamGroup& member) const {
  return mesh().shard_group() != nullptr &&
         (gathered_.stage() == Gathered::Stage::released || !is_current(member));
}

void Bucket::restart_gather() {
  if (mesh().shard_group() == nullptr) return;
  release();
  start(/*async=*/true);
}

void Bucket::gather_for(const ParamGroup& member) {
  if (!is_current(member)) release();
  if (gathered_.stage() == Gathered::Stage::released) {
    if (mesh().shard_group() != nullptr) {
      start(/*async=*/false);
    } else {
      copy_shards();
    }
  }
  finish_gather();
}

void Bucket::drop_prefetch() {
  gathered_.release();
  for (ParamGroup* member : members_) member->set_unsharded(false);
}

void Bucket::release() {
  parts_.clear();
  drop_prefetch();
}

void Bucket::release_after_backward() {
  if (options().reshard_after_backward) release();
}

void Bucket::release_after_forward() {
  const comm::Group* smaller = options().smaller_group.get();
  if (smaller == nullptr || !is_current()) {
    release();
    return;
  }
  if (!is_gathered()) return;  // already released, or a prefetch in flight
  if (parts_.empty()) {
    parts_ = gathered_.parts_of_slots(smaller->index(), smaller->size(), *options().collectives,
                                      members_[0]->scheduler()->bytes());
  }
  drop_prefetch();
}

Reduction& Bucket::reduction() {
  if (reduction_ == nullptr) {
    reduction_ = std::make_shared<Reduction>(
        reduce_layout_, mesh(), options().collectives,
        Reduction::How{options().divide_by, options().all_reduce_gradients},
        StepLog::Message{members_[0]->scheduler()->log(), StepLog::What::reduction, number()});
  }
  return *reduction_;
}

bool Bucket::count_arrival() {
  if (awaited_ < 0) {
    awaited_ = 0;
    for (const ParamGroup* member : members_) awaited_ += member->params_with_gradient();
  }
  return --awaited_ == 0;
}

void Bucket::reduce_arrived() {
  for (ParamGroup* member : members_) member->add_kept();
  const std::shared_ptr<Reduction> reduction = std::exchange(reduction_, nullptr);
  reset_arrivals();
  for (ParamGroup* member : members_) {
    if (reduction == nullptr && member->state() != TrainingState::pre_backward) continue;
    member->enter(TrainingState::pre_backward);  // or its gradients were kept unreduced
    member->enter(TrainingState::post_backward);
  }
  if (reduction == nullptr) return;
  std::vector<std::shared_ptr<ParamGroup>> members;  // keeps them alive until it completes
  for (ParamGroup* member : members_) members.push_back(member->shared_from_this());
  members_[0]->scheduler()->reduce(*this, reduction, [members, reduction] {
    size_t first_param = 0;
    for (const auto& member : members) {
      member->take_reduced(*reduction, first_param);
      first_param += member->params();
    }
  });
}

void Bucket::reset_arrivals() {
  reduction_.reset();
  awaited_ = -1;
  for (ParamGroup* member : members_) member->reset_arrivals();
}

}  // namespace tessera::fsdp
