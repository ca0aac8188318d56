#pragma once

#include <cstddef>
#include <functional>
#include <vector>

/// What a step touches and in which order, learned from the steps before.
///
/// Touches of one bucket in a row are a *run*. A step is a list of runs and ends with its backward:
///
///   forward         backward
///   a a  b b  c c . c c c  b b b  a      ->  a:2  b:2  c:5  b:3  a:1
///
/// Steps are told apart by the buckets of their runs and by whether autograd records when a run
/// begins, so that evaluation is not taken for training. Those that differ in touches alone are
/// alike: a run is over when it was in all of them.
namespace tessera::fsdp {

class Bucket;

class StepOrder {
 public:
  struct Run {
    Bucket* bucket = nullptr;
    bool records = false;  ///< autograd does, when it begins
    int touches = 0;
    bool operator==(const Run&) const = default;
  };
  using Step = std::vector<Run>;

  /// The bucket of the run under way; nullptr between steps.
  Bucket* current() const { return run_.bucket; }
  /// The bucket that the step began with; nullptr if it has had no run but the current one.
  Bucket* first() const { return before_.empty() ? nullptr : before_[0].bucket; }

  void begin_run(Bucket& bucket, bool records);
  void count_touch() { ++run_.touches; }

  // What is known of the step, if it goes like one before.
  Bucket* next() const;  ///< of the run after this one; nullptr: none, or unknown
  /// Whether the run ends with the touch counted last.
  bool is_last_touch() const { return run_.touches == touches_before_; }

  /// Remembers the step that ends here; its runs.
  const Step& end();
  void forget_step();  ///< one that did not come to its end
  /// It is no more. Steps that named it stay known up to where they did: ranks may hear of its end
  /// at different times, and must go on alike.
  void forget(const Bucket& bucket);
  /// Other buckets took the places of those that are known.
  void rename(const std::function<Bucket*(Bucket*)>& now);

 private:
  void follow();

  Run run_;                         // the current one
  Step before_;                     // the step's earlier ones
  std::vector<Step> known_;         // the latest first
  std::vector<const Step*> alike_;  // the known steps that this one is like so far
  int touches_before_ = kUnknown;   // the most of this run in any of them
  static constexpr int kUnknown = -1;
};

}  // namespace tessera::fsdp
