#pragma once

#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <set>
#include <span>
#include <thread>
#include <vector>

#include "tessera/fsdp/buffers/gathered.h"
#include "tessera/fsdp/buffers/reduction.h"
#include "tessera/fsdp/buffers/step_log.h"
#include "tessera/fsdp/forward_counts.h"
#include "tessera/fsdp/gradient_node.h"
#include "tessera/fsdp/order/rank_agreement.h"
#include "tessera/fsdp/order/step_order.h"
#include "tessera/mesh/device_mesh.h"

/// Decides when groups are gathered and resharded. One scheduler per rank, for all groups; it
/// learns the order from previous steps.
///
/// In the first step a group is resharded when another group is used. At the end of that step,
/// small consecutive groups are merged into buckets (fsdp/order/merge.h). From the second step on
/// the order is known: when a run begins, the bucket of the next run is prefetched, and after the
/// last use of a run its bucket is resharded. So two buckets are gathered at a time, one in use and
/// one in flight. A step that deviates from every known one is still correct: whatever is used is
/// gathered.
namespace tessera::fsdp {

class Bucket;
class ParamGroup;

class GatherScheduler : public std::enable_shared_from_this<GatherScheduler> {
 public:
  /// The scheduler of this rank in the mesh's world.
  static std::shared_ptr<GatherScheduler> of(const DeviceMesh& mesh);

  size_t add(ParamGroup& group);  ///< returns its number, identical on all ranks
  void remove(ParamGroup& group) noexcept;
  /// Counts groups of the mesh: 1, 2, ... Not by scheduler: ranks free their schedulers, and make
  /// others, at different times.
  static uint64_t count_on(const DeviceMesh& mesh);

  /// Splits the bucket into single groups until the end of the next step.
  void split(Bucket& bucket);

  /// While any group has `agrees`, ranks may use different parameters, and all groups of the rank
  /// are gathered in rounds (fsdp/order/rank_agreement.h): no prefetch, no learned order, no
  /// merging, and gradients are reduced at the end of backward.
  void agree_on(std::span<const std::shared_ptr<ParamGroup>> groups, bool agrees);
  bool agrees() const { return agreement_ != nullptr; }
  /// Blocks until the group's parameters are gathered.
  void gather(const ParamGroup& group);
  /// Takes part in the other ranks' gathers until all ranks have called it: at the end of a
  /// backward, or in reshard().
  void end_rounds();
  /// After a module's forward: a backward through these outputs enters here. Without effect unless
  /// ranks may use different parameters.
  void watch_forward(std::span<const at::Tensor> outputs, bool used_parameters);

  /// Called before an op uses the group; blocks until it is gathered.
  void touch(ParamGroup& group);
  /// Called when the op no longer needs it.
  void touched(ParamGroup& group);

  void count_use() { ++uses_; }
  uint64_t uses() const { return uses_; }  ///< of parameters, so far

  /// Called by every event of a backward. The end of that backward reduces and frees everything.
  /// Until then parameters report their compute dtype, because recomputation may read it at any
  /// point.
  void enter_backward();

  /// Discards the state of backwards that threw, if any. Called when parameters are used.
  void leave_failed_backward();

  /// Called before a module whose groups switch their dtype computes, on the program's own thread.
  void note_thread() { thread_ = std::this_thread::get_id(); }

  /// Starts a bucket's reduction; `done` runs after it, at the end of backward at the latest. At
  /// most one reduce_scatter is in flight, which bounds the memory of gradients.
  void reduce(const Bucket& of, std::shared_ptr<Reduction> reduction, std::function<void()> done);

  const std::shared_ptr<GatheredBytes>& bytes() const { return bytes_; }
  const std::shared_ptr<StepLog>& log() const { return log_; }
  bool in_backward() const { return !backwards_.empty(); }

 private:
  class BackwardWatch;
  struct Flight {
    std::shared_ptr<Reduction> reduction;
    std::function<void()> done;
  };

  struct OfWorlds;
  static OfWorlds& of_worlds();
  static void world_ends(const World& world);
  void drop_unused();
  void drop_unused_now_and_then();
  void begin_run(ParamGroup& group);
  void reshard(Bucket& bucket);
  void prefetch_after(const Bucket& bucket);
  void end_op_on_several();
  std::vector<Bucket*> buckets() const;
  void finish_oldest_reduction();
  void make_agreement();
  bool take_part_in_round(int64_t needed);
  void agree_on_reductions();
  void remove_leaf_hooks();
  void end_backward(int task);
  void end_step();
  void merge(const StepOrder::Step& step);
  std::vector<std::vector<ParamGroup*>> rows_to_merge(const StepOrder::Step& step) const;
  void set_in_backward(bool in_backward);
  void note_failure(int task);
  void forget_failed_tasks();
  void clean_up();

  std::vector<ParamGroup*> groups_;  // in creation order, identical on all ranks
  size_t groups_made_ = 0;
  size_t asked_ = 0;                        // calls of of() since unused groups were last dropped
  std::set<ParamGroup*> settled_;           // already considered for merging
  std::vector<ParamGroup*> reduced_whole_;  // groups without gathers, in order of their gradients
  std::shared_ptr<StepLog> log_ = std::make_shared<StepLog>();
  std::shared_ptr<GatheredBytes> bytes_ = std::make_shared<GatheredBytes>();
  StepOrder order_;
  std::weak_ptr<Bucket> prefetched_;               // as the next one in the learned order
  std::vector<std::weak_ptr<Bucket>> held_by_op_;  // in use by the current op
  DeviceMesh widest_mesh_;                         // of all groups so far
  std::unique_ptr<RankAgreement> agreement_;
  std::set<size_t> agreed_groups_;                          // numbers of the groups that request it
  std::vector<std::weak_ptr<Bucket>> gathered_for_others_;  // in the last round
  std::shared_ptr<ForwardCounts> forwards_ = std::make_shared<ForwardCounts>();
  std::vector<std::pair<WeakTensor, unsigned>> leaf_hooks_;  // of watch_forward()
  uint64_t uses_ = 0;
  std::set<int> backwards_;     // autograd graph tasks in progress
  std::deque<Flight> flights_;  // reductions in flight, oldest first
  std::mutex failed_mutex_;
  std::vector<int> failed_;  // graph tasks that ended without their callback
  std::thread::id thread_;   // that modules compute on, if recorded
};

}  // namespace tessera::fsdp
