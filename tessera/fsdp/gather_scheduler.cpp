#include "tessera/fsdp/gather_scheduler.h"

#include <c10/core/GradMode.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/graph_task.h>

#include <algorithm>
#include <map>

#include "tessera/comm/world_end.h"
#include "tessera/fsdp/param_group.h"
#include "tessera/mesh/per_mesh.h"

namespace tessera::fsdp {
namespace {

constexpr int kNoBackward = -1;
/// One between its reduce_scatter and its all_reduce, and one in the all_reduce.
constexpr size_t kMostReductions = 2;

int current_task() { return torch::autograd::get_current_graph_task_id(); }

}  // namespace

/// A callback that autograd's graph task calls at the end of a backward. A failed task is destroyed
/// without calling it.
class GatherScheduler::BackwardWatch {
 public:
  BackwardWatch(std::weak_ptr<GatherScheduler> scheduler, int task)
      : scheduler_(std::move(scheduler)), task_(task) {}
  ~BackwardWatch() {
    const auto scheduler = scheduler_.lock();
    if (scheduler != nullptr && !ended_) scheduler->note_failure(task_);
  }
  BackwardWatch(const BackwardWatch&) = delete;
  BackwardWatch& operator=(const BackwardWatch&) = delete;

  void end() {
    if (const auto scheduler = scheduler_.lock()) scheduler->end_backward(task_);
    ended_ = true;  // the backward did not throw
  }

 private:
  std::weak_ptr<GatherScheduler> scheduler_;
  int task_;
  bool ended_ = false;
};

struct GatherScheduler::OfWorlds {
  std::mutex mutex;
  std::map<const World*, std::weak_ptr<GatherScheduler>> all;
  PerMesh<uint64_t> groups_on_mesh;
};

GatherScheduler::OfWorlds& GatherScheduler::of_worlds() {
  static auto* instance = [] {
    comm::on_world_end(world_ends);
    return new OfWorlds();  // worlds may end after static destruction
  }();
  return *instance;
}

std::shared_ptr<GatherScheduler> GatherScheduler::of(const DeviceMesh& mesh) {
  OfWorlds& worlds = of_worlds();
  std::shared_ptr<GatherScheduler> scheduler;
  {
    std::lock_guard lock(worlds.mutex);
    std::erase_if(worlds.all, [](const auto& item) { return item.second.expired(); });
    auto& slot = worlds.all[mesh.world().get()];
    scheduler = slot.lock();
    if (scheduler == nullptr) {
      scheduler = std::make_shared<GatherScheduler>();
      slot = scheduler;
    }
  }
  scheduler->drop_unused_now_and_then();
  return scheduler;
}

uint64_t GatherScheduler::count_on(const DeviceMesh& mesh) {
  OfWorlds& worlds = of_worlds();
  std::lock_guard lock(worlds.mutex);
  return ++worlds.groups_on_mesh.of(mesh, 0);
}

/// Unused groups would keep the world alive.
void GatherScheduler::world_ends(const World& world) {
  std::shared_ptr<GatherScheduler> scheduler;
  {
    std::lock_guard lock(of_worlds().mutex);
    const auto found = of_worlds().all.find(&world);
    if (found != of_worlds().all.end()) scheduler = found->second.lock();
  }
  if (scheduler != nullptr) scheduler->drop_unused();
}

/// Each group that is created calls of(). Scanning all groups every time would make creating
/// thousands of them quadratic.
void GatherScheduler::drop_unused_now_and_then() {
  constexpr size_t kShare = 16;
  if (++asked_ <= groups_.size() / kShare) return;
  asked_ = 0;
  drop_unused();
}

void GatherScheduler::drop_unused() {
  std::vector<std::shared_ptr<ParamGroup>> unused;
  for (ParamGroup* group : groups_) {
    if (!group->is_used()) unused.push_back(group->shared_from_this());
  }
  for (const auto& group : unused) group->forget_tensors();
}

size_t GatherScheduler::add(ParamGroup& group) {
  groups_.push_back(&group);
  const DeviceMesh& mesh = group.mesh().mesh();
  const bool wider = !widest_mesh_.defined() || mesh.size() > widest_mesh_.size();
  if (wider) widest_mesh_ = mesh;
  if (agrees()) make_agreement();
  return groups_made_++;
}

void GatherScheduler::remove(ParamGroup& group) noexcept {
  std::erase(groups_, &group);
  std::erase(reduced_whole_, &group);
  if (group.bucket() == nullptr) return;  // its construction did not complete
  try {
    split(*group.bucket());
  } catch (const std::exception&) {  // a peer failed; the next wait reports it
  }
  settled_.erase(&group);
}

void GatherScheduler::split(Bucket& bucket) {
  order_.forget(bucket);
  const auto kept = bucket.shared_from_this();
  for (ParamGroup* member : bucket.members()) {
    settled_.erase(member);
    Bucket::make({member});
  }
  bucket.release();
}

std::vector<Bucket*> GatherScheduler::buckets() const {
  std::vector<Bucket*> out;
  for (const ParamGroup* group : groups_) {
    Bucket* bucket = group->bucket().get();
    if (bucket->members()[0] == group) out.push_back(bucket);
  }
  return out;
}

/// Shards do not change before the end of the step, so the gathered values stay valid.
void GatherScheduler::reshard(Bucket& bucket) {
  if (in_backward()) {
    bucket.release_after_backward();
  } else if (bucket.options().reshard_after_forward && (!c10::GradMode::is_enabled() || agrees())) {
    bucket.release();
  } else if (bucket.options().reshard_after_forward) {
    bucket.release_after_forward();
  }
}

void GatherScheduler::begin_run(ParamGroup& group) {
  if (Bucket* previous = order_.current()) {
    // An op on several buckets keeps each of them until it completes.
    if (previous->is_held()) {
      held_by_op_.push_back(previous->weak_from_this());
    } else {
      reshard(*previous);
    }
  }
  const auto guessed = std::exchange(prefetched_, {}).lock();
  if (guessed != nullptr && guessed != group.bucket()) guessed->drop_prefetch();
  // Without gradients the only sign that a step ended is that the next one begins.
  const bool records = c10::GradMode::is_enabled();
  if (order_.first() == group.bucket().get() && !in_backward() && !records) end_step();
  order_.begin_run(*group.bucket(), records);
}

void GatherScheduler::touch(ParamGroup& group) {
  leave_failed_backward();
  enter_backward();
  const bool begins = order_.current() != group.bucket().get();
  if (begins) {
    log_->set_backward(in_backward());
    begin_run(group);
  }
  order_.count_touch();
  Bucket& bucket = *group.bucket();
  gather(group);
  if (!begins) return;
  if (held_by_op_.empty()) prefetch_after(bucket);
  log_->note(StepLog::What::use, StepLog::When::starts, bucket.number());
}

void GatherScheduler::prefetch_after(const Bucket& bucket) {
  if (agrees()) return;
  bool is_configured = false;
  for (const ParamGroup* member : bucket.members()) {
    const auto& wanted = in_backward() ? member->backward_prefetch : member->forward_prefetch;
    if (!wanted) continue;
    is_configured = true;
    for (const auto& weak : *wanted) {
      if (const auto group = weak.lock()) group->bucket()->start_gather();
    }
  }
  if (is_configured) return;
  Bucket* next = order_.next();
  if (next != nullptr && next->start_gather()) prefetched_ = next->weak_from_this();
}

void GatherScheduler::touched(ParamGroup& group) {
  Bucket* bucket = group.bucket().get();
  if (!held_by_op_.empty()) end_op_on_several();
  if (bucket == order_.current() && order_.is_last_touch() && !agrees()) reshard(*bucket);
}

/// Reshards what only that op held, then prefetches the next bucket.
void GatherScheduler::end_op_on_several() {
  for (const auto& weak : std::exchange(held_by_op_, {})) {
    const auto bucket = weak.lock();
    if (bucket != nullptr && bucket.get() != order_.current()) reshard(*bucket);
  }
  if (order_.current() != nullptr) prefetch_after(*order_.current());
}

void GatherScheduler::enter_backward() {
  const int task = current_task();
  if (task == kNoBackward || backwards_.contains(task)) return;
  forget_failed_tasks();
  backwards_.insert(task);
  if (backwards_.size() == 1) set_in_backward(true);
  auto watch = std::make_shared<BackwardWatch>(weak_from_this(), task);
  torch::autograd::Engine::get_default_engine().queue_callback([watch] { watch->end(); });
}

void GatherScheduler::reduce(const Bucket& of, std::shared_ptr<Reduction> reduction,
                             std::function<void()> done) {
  if (of.mesh().shard_group() == nullptr) {
    reduced_whole_.insert(reduced_whole_.end(), of.members().begin(), of.members().end());
  }
  while (flights_.size() >= kMostReductions) finish_oldest_reduction();
  if (!flights_.empty() && flights_.back().reduction->advance() == Reduction::Stage::ended) {
    while (!flights_.empty()) finish_oldest_reduction();
  }
  reduction->start();
  flights_.push_back({std::move(reduction), std::move(done)});
}

void GatherScheduler::finish_oldest_reduction() {
  const Flight flight = std::move(flights_.front());
  flights_.pop_front();
  flight.reduction->finish();
  flight.done();
}

void GatherScheduler::end_backward(int task) {
  const c10::AutoGradMode no_grad(false);
  // A nested backward, as in recomputation: more gradients of the same buckets may arrive.
  if (backwards_.size() > 1) {
    backwards_.erase(task);
    return;
  }
  end_rounds();
  agree_on_reductions();
  // The remaining buckets: some of their parameters were not used.
  for (Bucket* bucket : buckets()) bucket->reduce_arrived();
  while (!flights_.empty()) finish_oldest_reduction();
  backwards_.erase(task);
  set_in_backward(false);
  for (Bucket* bucket : buckets()) bucket->release_after_backward();
  for (ParamGroup* group : groups_) group->enter(TrainingState::idle);
  remove_leaf_hooks();
  end_step();
}

void GatherScheduler::end_step() {
  const StepOrder::Step& step = order_.end();
  if (agrees()) {
    reduced_whole_.clear();
  } else {
    merge(step);
  }
  drop_unused();
}

void GatherScheduler::set_in_backward(bool in_backward) {
  for (ParamGroup* group : groups_) group->set_in_backward(in_backward);
}

/// The full clean-up is done at the next use of parameters. Their dtype is restored immediately,
/// because the program may read it before that, but only on the program's own thread: from another
/// one this would race with such a read.
void GatherScheduler::note_failure(int task) {
  std::lock_guard lock(failed_mutex_);
  failed_.push_back(task);
  if (std::this_thread::get_id() != thread_) return;
  const bool all_failed = std::ranges::all_of(
      backwards_, [this](int one) { return std::ranges::find(failed_, one) != failed_.end(); });
  if (all_failed) set_in_backward(false);
}

/// For backwards that threw and were followed by another backward without a forward in between.
void GatherScheduler::forget_failed_tasks() {
  std::vector<int> failed;
  {
    std::lock_guard lock(failed_mutex_);
    failed.swap(failed_);
  }
  bool left = false;
  for (const int task : failed) left = backwards_.erase(task) > 0 || left;
  if (left && backwards_.empty()) clean_up();
}

/// A backward that threw never reached its end callback.
void GatherScheduler::leave_failed_backward() {
  if (backwards_.empty() || current_task() != kNoBackward) return;
  backwards_.clear();
  clean_up();
}

void GatherScheduler::clean_up() {
  set_in_backward(false);
  // Gradients of a failed backward must not arrive later: the caller may have zeroed grad
  // meanwhile.
  for (const Flight& flight : flights_) flight.reduction->abandon();
  flights_.clear();
  held_by_op_.clear();
  gathered_for_others_.clear();
  remove_leaf_hooks();
  forwards_ = std::make_shared<ForwardCounts>();
  for (Bucket* bucket : buckets()) {
    bucket->reset_arrivals();
    bucket->release();
  }
  // Kept gradients include a part of the failed backward, which zeroing grad would not remove.
  for (ParamGroup* group : groups_) group->forget_kept();
  for (ParamGroup* group : groups_) group->enter(TrainingState::idle);
  order_.forget_step();
}

}  // namespace tessera::fsdp
