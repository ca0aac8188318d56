#include "tessera/fsdp/timeline.h"

#include <c10/core/GradMode.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/graph_task.h>

#include <algorithm>
#include <map>
#include <mutex>

#include "tessera/fsdp/param_group.h"

namespace tessera::fsdp {
namespace {

/// Programs alternate between few kinds of steps: training, evaluation, two losses.
constexpr size_t kKnownSteps = 4;
/// A program that never ends a step (inference whose first group differs) must not grow.
constexpr size_t kLongestStep = 1U << 16;
constexpr int kNoBackward = -1;

}  // namespace

std::shared_ptr<Timeline> Timeline::of(const DeviceMesh& mesh) {
  static std::mutex mutex;
  static std::map<const World*, std::weak_ptr<Timeline>> by_world;
  std::lock_guard lock(mutex);
  std::erase_if(by_world, [](const auto& item) { return item.second.expired(); });
  auto& slot = by_world[mesh.world().get()];
  std::shared_ptr<Timeline> timeline = slot.lock();
  if (timeline == nullptr) {
    timeline = std::make_shared<Timeline>();
    slot = timeline;
  }
  return timeline;
}

void Timeline::add(ParamGroup& group) { groups_.push_back(&group); }

void Timeline::remove(ParamGroup& group) {
  std::erase(groups_, &group);
  known_.clear();  // they may name it
  like_ = nullptr;
  before_.clear();
  if (run_.group == &group) run_ = {};
}

/// Before the end of the step the shards do not change, so what is gathered stays right.
bool Timeline::may_release(const ParamGroup& group) const {
  return in_backward() || group.options().reshard_after_forward;
}

const Timeline::Run* Timeline::expected(size_t ahead) const {
  const size_t at = before_.size() + ahead;
  return like_ != nullptr && at < like_->size() ? &(*like_)[at] : nullptr;
}

/// Finds a known step that began with the same groups.
void Timeline::follow() {
  const size_t at = before_.size();
  if (like_ != nullptr && at < like_->size() && (*like_)[at].group == run_.group) return;
  like_ = nullptr;
  for (const Step& step : known_) {
    if (at >= step.size() || step[at].group != run_.group) continue;
    const auto same_group = [](const Run& a, const Run& b) { return a.group == b.group; };
    if (!std::equal(before_.begin(), before_.end(), step.begin(), same_group)) continue;
    like_ = &step;
    return;
  }
}

void Timeline::begin_run(ParamGroup& group) {
  ParamGroup* previous = run_.group;
  if (previous != nullptr) before_.push_back(run_);
  run_ = {};
  // Without gradients nothing tells that a step ended, except that the next one begins.
  const bool again = !before_.empty() && before_[0].group == &group && !in_backward() &&
                     !c10::GradMode::is_enabled();
  if (again) end_step();
  if (before_.size() > kLongestStep) before_.clear();
  run_ = {&group, 0};
  follow();
  if (previous != nullptr && may_release(*previous)) previous->release();
}

void Timeline::touch(ParamGroup& group) {
  leave_failed_backward();
  if (torch::autograd::get_current_graph_task_id() != kNoBackward) enter_backward();
  const bool begins = run_.group != &group;
  if (begins) begin_run(group);
  ++run_.touches;
  group.gather();
  if (!begins) return;
  if (const Run* next = expected(1)) next->group->start_gather();
}

void Timeline::touched(ParamGroup& group) {
  const Run* known = expected(0);
  if (known != nullptr && run_.touches == known->touches && may_release(group)) group.release();
}

void Timeline::enter_backward() {
  const int task = torch::autograd::get_current_graph_task_id();
  if (task == kNoBackward || !backwards_.insert(task).second) return;
  torch::autograd::Engine::get_default_engine().queue_callback([weak = weak_from_this(), task] {
    if (const auto timeline = weak.lock()) timeline->end_backward(task);
  });
}

void Timeline::reduce(Reduction& reduction, std::function<void()> done) {
  finish_reduction();
  reduction.start();
  reducing_ = &reduction;
  reduced_ = std::move(done);
}

void Timeline::finish_reduction() {
  if (reducing_ == nullptr) return;
  Reduction* reduction = std::exchange(reducing_, nullptr);
  const std::function<void()> done = std::exchange(reduced_, nullptr);
  reduction->finish();
  done();
}

void Timeline::end_backward(int task) {
  const c10::AutoGradMode no_grad(false);
  // What is left: groups of which some parameters took no part.
  for (ParamGroup* group : groups_) group->reduce_arrived();
  finish_reduction();
  backwards_.erase(task);
  if (!backwards_.empty()) return;
  if (run_.group != nullptr) before_.push_back(run_);
  run_ = {};
  end_step();
  for (ParamGroup* group : groups_) group->release();
}

void Timeline::end_step() {
  like_ = nullptr;
  if (before_.empty()) return;
  std::erase(known_, before_);
  known_.insert(known_.begin(), std::move(before_));
  if (known_.size() > kKnownSteps) known_.pop_back();
  before_.clear();
}

/// A backward that threw never came to its end.
void Timeline::leave_failed_backward() {
  if (backwards_.empty() || torch::autograd::get_current_graph_task_id() != kNoBackward) return;
  backwards_.clear();
  // Gradients of a failed backward do not arrive after it: the caller may have reset them since.
  if (reducing_ != nullptr) reducing_->abandon();
  reducing_ = nullptr;
  reduced_ = nullptr;
  for (ParamGroup* group : groups_) {
    group->forget_arrived();
    group->release();
  }
  run_ = {};
  before_.clear();
  like_ = nullptr;
}

}  // namespace tessera::fsdp
