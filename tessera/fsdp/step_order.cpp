#include "tessera/fsdp/step_order.h"

#include <algorithm>

namespace tessera::fsdp {
namespace {

/// Programs alternate between few kinds of steps: training, evaluation, two losses.
constexpr size_t kKnownSteps = 4;
/// A program that never ends a step (inference whose first group differs) must not grow.
constexpr size_t kLongestStep = 1U << 16;

bool same_bundle(const StepOrder::Run& a, const StepOrder::Run& b) { return a.bundle == b.bundle; }

}  // namespace

const StepOrder::Run* StepOrder::expected(size_t ahead) const {
  const size_t at = before_.size() + ahead;
  return like_ != nullptr && at < like_->size() ? &(*like_)[at] : nullptr;
}

Bundle* StepOrder::next() const {
  const Run* run = expected(1);
  return run != nullptr ? run->bundle : nullptr;
}

bool StepOrder::is_last_touch() const {
  const Run* run = expected(0);
  return run != nullptr && run->touches == run_.touches;
}

void StepOrder::begin_run(Bundle& bundle) {
  if (run_.bundle != nullptr) before_.push_back(run_);
  if (before_.size() > kLongestStep) before_.clear();
  run_ = {&bundle, 0};
  follow();
}

/// Finds a known step that began with the same runs.
void StepOrder::follow() {
  const Run* known = expected(0);
  if (known != nullptr && known->bundle == run_.bundle) return;
  like_ = nullptr;
  const size_t at = before_.size();
  for (const Step& step : known_) {
    if (at >= step.size() || step[at].bundle != run_.bundle) continue;
    if (!std::equal(before_.begin(), before_.end(), step.begin(), same_bundle)) continue;
    like_ = &step;
    return;
  }
}

const StepOrder::Step& StepOrder::end() {
  static const Step nothing;
  if (run_.bundle != nullptr) before_.push_back(run_);
  run_ = {};
  like_ = nullptr;
  if (before_.empty()) return nothing;
  std::erase(known_, before_);
  known_.insert(known_.begin(), std::move(before_));
  if (known_.size() > kKnownSteps) known_.pop_back();
  before_.clear();
  return known_[0];
}

void StepOrder::forget_step() {
  run_ = {};
  before_.clear();
  like_ = nullptr;
}

void StepOrder::forget_all() {
  forget_step();
  known_.clear();
}

void StepOrder::rename(const std::function<Bundle*(Bundle*)>& now) {
  forget_step();
  for (Step& step : known_) {
    Step renamed;
    for (const Run& run : step) {
      Bundle* bundle = now(run.bundle);
      if (!renamed.empty() && renamed.back().bundle == bundle) {
        renamed.back().touches += run.touches;
      } else {
        renamed.push_back({bundle, run.touches});
      }
    }
    step = std::move(renamed);
  }
}

}  // namespace tessera::fsdp
