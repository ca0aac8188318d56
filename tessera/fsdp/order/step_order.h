#pragma once

#include <cstddef>
#include <functional>
#include <vector>

/// The order in which a step uses buckets, learned from previous steps.
///
/// Consecutive touches of one bucket form a *run*. A step is a list of runs and ends with its
/// backward:
///
///   forward         backward
///   a a  b b  c c . c c c  b b b  a      ->  a:2  b:2  c:5  b:3  a:1
///
/// Steps are distinguished by the buckets of their runs and by whether autograd records when a run
/// begins, so that evaluation is not mistaken for training. Steps that differ only in numbers of
/// touches count as the same: a run ends with the largest number seen in any of them.
namespace tessera::fsdp {

class Bucket;

class StepOrder {
 public:
  struct Run {
    Bucket* bucket = nullptr;
    bool records = false;  ///< whether autograd records when it begins
    int touches = 0;
    bool operator==(const Run&) const = default;
  };
  using Step = std::vector<Run>;

  /// The bucket of the current run; nullptr between steps.
  Bucket* current() const { return run_.bucket; }
  /// The bucket of the step's first run; nullptr if only the current run has begun.
  Bucket* first() const { return before_.empty() ? nullptr : before_[0].bucket; }

  void begin_run(Bucket& bucket, bool records);
  void count_touch() { ++run_.touches; }

  // Predictions, valid if the step continues like a known one.
  Bucket* next() const;  ///< bucket of the next run; nullptr: none, or unknown
  /// Whether the touch counted last is predicted to be the last of the run.
  bool is_last_touch() const { return run_.touches == touches_before_; }

  /// Ends the step, remembers it, and returns its runs.
  const Step& end();
  void forget_step();  ///< a step that was not completed
  /// The bucket is destroyed. Known steps that contain it are truncated before it: ranks may
  /// destroy it at different times, and their predictions must stay identical.
  void forget(const Bucket& bucket);
  /// Replaces buckets in the known steps, after merging.
  void rename(const std::function<Bucket*(Bucket*)>& now);

 private:
  void follow();

  Run run_;                         // the current one
  Step before_;                     // earlier runs of this step
  std::vector<Step> known_;         // most recent first
  std::vector<const Step*> alike_;  // known steps that this one matches so far
  int touches_before_ = kUnknown;   // the largest number of touches of this run in any of them
  static constexpr int kUnknown = -1;
};

}  // namespace tessera::fsdp
