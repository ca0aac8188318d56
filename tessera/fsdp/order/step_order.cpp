#include "tessera/fsdp/order/step_order.h"

#include <algorithm>
#include <utility>

namespace tessera::fsdp {
namespace {

/// Programs alternate between few kinds of steps: training, evaluation, two losses.
constexpr size_t kKnownSteps = 4;
/// Bounds the memory of a program that never ends a step (inference whose first group varies).
constexpr size_t kLongestStep = 1U << 16;

}  // namespace

Bucket* StepOrder::next() const {
  const size_t at = before_.size() + 1;
  return !alike_.empty() && at < alike_[0]->size() ? (*alike_[0])[at].bucket : nullptr;
}

void StepOrder::begin_run(Bucket& bucket, bool records) {
  if (run_.bucket != nullptr) before_.push_back(run_);
  if (before_.size() > kLongestStep) before_.clear();
  run_ = {&bucket, records, 0};
  follow();
}

/// Keeps the known steps that also continue with this run.
void StepOrder::follow() {
  const size_t at = before_.size();
  if (at == 0) {
    alike_.clear();
    for (const Step& step : known_) alike_.push_back(&step);
  }
  touches_before_ = kUnknown;
  std::erase_if(alike_, [&](const Step* step) {
    if (at >= step->size()) return true;
    const Run& run = (*step)[at];
    if (run.bucket != run_.bucket || run.records != run_.records) return true;
    touches_before_ = std::max(touches_before_, run.touches);
    return false;
  });
}

const StepOrder::Step& StepOrder::end() {
  static const Step nothing;
  if (run_.bucket != nullptr) before_.push_back(run_);
  run_ = {};
  alike_.clear();
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
  alike_.clear();
}

void StepOrder::forget(const Bucket& bucket) {
  const auto leave_out = [&bucket](Step& step) {
    for (Run& run : step) {
      if (run.bucket == &bucket) run.bucket = nullptr;
    }
  };
  for (Step& step : known_) leave_out(step);
  if (run_.bucket == &bucket) before_.push_back(std::exchange(run_, {}));
  leave_out(before_);
}

void StepOrder::rename(const std::function<Bucket*(Bucket*)>& now) {
  forget_step();
  for (Step& step : known_) {
    Step renamed;
    for (const Run& run : step) {
      Bucket* bucket = run.bucket != nullptr ? now(run.bucket) : nullptr;
      if (bucket != nullptr && !renamed.empty() && renamed.back().bucket == bucket) {
        renamed.back().touches += run.touches;
      } else {
        renamed.push_back({bucket, run.records, run.touches});
      }
    }
    step = std::move(renamed);
  }
}

}  // namespace tessera::fsdp
