#pragma once

#include <cstddef>
#include <functional>
#include <vector>

/// What a step touches and in which order, learned from the steps before.
///
/// Touches of one bundle in a row are a *run*. A step is a list of runs and ends with its backward:
///
///   forward         backward
///   a a  b b  c c . c c c  b b b  a      ->  a:2  b:2  c:5  b:3  a:1
namespace tessera::fsdp {

class Bundle;

class StepOrder {
 public:
  struct Run {
    Bundle* bundle = nullptr;
    int touches = 0;
    bool operator==(const Run&) const = default;
  };
  using Step = std::vector<Run>;

  /// The bundle of the run under way; nullptr between steps.
  Bundle* current() const { return run_.bundle; }
  /// The bundle that the step began with; nullptr if it has had no run but the current one.
  Bundle* first() const { return before_.empty() ? nullptr : before_[0].bundle; }

  void begin_run(Bundle& bundle);
  void count_touch() { ++run_.touches; }

  // What is known of the step, if it goes like one before.
  Bundle* next() const;        ///< of the run after this one; nullptr: none, or unknown
  bool is_last_touch() const;  ///< whether the run ends with the touch counted last

  /// Remembers the step that ends here; its runs.
  const Step& end();
  void forget_step();  ///< one that did not come to its end
  void forget_all();
  /// Other bundles took the places of those that are known.
  void rename(const std::function<Bundle*(Bundle*)>& now);

 private:
  const Run* expected(size_t ahead) const;
  void follow();

  Run run_;                     // the current one
  Step before_;                 // the step's earlier ones
  std::vector<Step> known_;     // the latest first
  const Step* like_ = nullptr;  // the known step that this one is like so far
};

}  // namespace tessera::fsdp
