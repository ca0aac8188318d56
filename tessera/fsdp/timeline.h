#pragma once

#include <functional>
#include <memory>
#include <set>
#include <vector>

#include "tessera/fsdp/gathered.h"
#include "tessera/fsdp/reduction.h"

/// When groups are gathered and let go: one order for all groups of a rank, learned as it goes.
///
/// Ops touch groups; touches of one group in a row are a *run*. A step is a list of runs and ends
/// with its backward:
///
///   forward         backward
///   a a  b b  c c . c c c  b b b  a      ->  a:2  b:2  c:5  b:3  a:1
///
/// In the first step a group is let go when another one is touched. From the second on the list is
/// known: when a run begins, the next run's group is prefetched, and with its last touch the group
/// is let go. So two groups are there at a time, one used and one on its way. A step that goes
/// otherwise than any known one is still right: what is touched is gathered.
namespace tessera::fsdp {

class ParamGroup;

class Timeline : public std::enable_shared_from_this<Timeline> {
 public:
  /// That of the rank behind a mesh.
  static std::shared_ptr<Timeline> of(const DeviceMesh& mesh);

  void add(ParamGroup& group);
  void remove(ParamGroup& group);

  /// An op is about to use the group: it is gathered when this returns.
  void touch(ParamGroup& group);
  /// The op has what it needs.
  void touched(ParamGroup& group);

  /// Something happens in backward; at its end all is reduced and let go.
  void enter_backward();

  /// Forgets a backward that threw, if it did. Called when parameters are used.
  void leave_failed_backward();

  /// Starts a reduction; `done` runs after it, at the latest when backward ends. One at a time is
  /// under way, which bounds the memory of gradients.
  void reduce(Reduction& reduction, std::function<void()> done);

  const std::shared_ptr<GatheredBytes>& bytes() const { return bytes_; }
  bool in_backward() const { return !backwards_.empty(); }

 private:
  struct Run {
    ParamGroup* group = nullptr;
    int touches = 0;
    bool operator==(const Run&) const = default;
  };
  using Step = std::vector<Run>;

  void begin_run(ParamGroup& group);
  void follow();
  const Run* expected(size_t ahead) const;
  bool may_release(const ParamGroup& group) const;
  void finish_reduction();
  void end_backward(int task);
  void end_step();

  std::vector<ParamGroup*> groups_;  // in order of creation, alike on all ranks
  std::shared_ptr<GatheredBytes> bytes_ = std::make_shared<GatheredBytes>();
  Run run_;                     // the current one
  Step before_;                 // the step's earlier ones
  std::vector<Step> known_;     // the latest first
  const Step* like_ = nullptr;  // the known step that this one is like so far
  std::set<int> backwards_;     // autograd's tasks under way
  Reduction* reducing_ = nullptr;
  std::function<void()> reduced_;
};

}  // namespace tessera::fsdp
