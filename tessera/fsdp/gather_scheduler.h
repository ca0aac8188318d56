#pragma once

#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <set>
#include <span>
#include <thread>
#include <vector>

#include "tessera/fsdp/gathered.h"
#include "tessera/fsdp/rank_agreement.h"
#include "tessera/fsdp/reduction.h"
#include "tessera/fsdp/step_log.h"
#include "tessera/fsdp/step_order.h"

/// When groups are gathered and let go: one order for all groups of a rank, learned as it goes.
///
/// In the first step a group is let go when another one is touched. When it ends, small neighbours
/// are put together into buckets (merge.h). From the second step on the order is known: when a run
/// begins, the next run's bucket is prefetched, and with its last touch the bucket is let go. So
/// two buckets are there at a time, one used and one on its way. A step that goes otherwise than
/// any known one is still right: what is touched is gathered.
namespace tessera::fsdp {

class Bucket;
class ParamGroup;

class GatherScheduler : public std::enable_shared_from_this<GatherScheduler> {
 public:
  /// That of the rank behind a mesh.
  static std::shared_ptr<GatherScheduler> of(const DeviceMesh& mesh);

  size_t add(ParamGroup& group);  ///< its number, alike on all ranks
  void remove(ParamGroup& group) noexcept;

  /// Each group of the bucket travels alone again, until the next step has ended.
  void part(Bucket& bucket);

  /// While any group agrees, ranks may use different parameters, and all groups of the rank are
  /// gathered in rounds (rank_agreement.h): no prefetch, no learned order, no merging, and
  /// gradients are reduced when backward ends.
  void agree_on(std::span<const std::shared_ptr<ParamGroup>> groups, bool agrees);
  bool agrees() const { return agreement_ != nullptr; }
  /// The group's parameters are gathered when this returns.
  void gather(const ParamGroup& group);
  /// Takes part in the gathers of the other ranks until all have come here.
  void end_rounds();

  /// An op is about to use the group: it is gathered when this returns.
  void touch(ParamGroup& group);
  /// The op needs it no more.
  void touched(ParamGroup& group);

  /// Something happens in backward; at its end all is reduced and freed. Until then parameters
  /// report the dtype that they compute in: recomputation may read it anywhere.
  void enter_backward();

  /// Forgets backwards that threw, if any did. Called when parameters are used.
  void leave_failed_backward();

  /// A module of groups that switch their dtype is about to compute, on the program's own thread.
  void note_thread() { thread_ = std::this_thread::get_id(); }

  /// Starts a bucket's reduction; `done` runs after it, at the latest when backward ends. One
  /// reduce_scatter at a time is under way, which bounds the memory of gradients.
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
  void end_backward(int task);
  void end_step();
  void merge(const StepOrder::Step& step);
  std::vector<std::vector<ParamGroup*>> rows_to_merge(const StepOrder::Step& step) const;
  void set_in_backward(bool in_backward);
  void note_failure(int task);
  void forget_failed_tasks();
  void clean_up();

  std::vector<ParamGroup*> groups_;  // in order of creation, alike on all ranks
  size_t groups_made_ = 0;
  size_t asked_ = 0;                        // since unused groups were dropped
  std::set<ParamGroup*> settled_;           // those that merging has seen
  std::vector<ParamGroup*> reduced_whole_;  // groups without gathers, as their gradients came
  std::shared_ptr<StepLog> log_ = std::make_shared<StepLog>();
  std::shared_ptr<GatheredBytes> bytes_ = std::make_shared<GatheredBytes>();
  StepOrder order_;
  std::weak_ptr<Bucket> prefetched_;               // because the order says that it comes next
  std::vector<std::weak_ptr<Bucket>> held_by_op_;  // beside the current one, by the op under way
  DeviceMesh widest_mesh_;                         // of all groups there were
  std::unique_ptr<RankAgreement> agreement_;
  std::set<size_t> agreed_groups_;                          // numbers of the groups that want it
  std::vector<std::weak_ptr<Bucket>> gathered_for_others_;  // in the last round
  std::set<int> backwards_;                                 // autograd's tasks under way
  std::deque<Flight> flights_;  // reductions under way, the oldest first
  std::mutex failed_mutex_;
  std::vector<int> failed_;  // tasks that ended without their callback
  std::thread::id thread_;   // that modules compute on, where one has said so
};

}  // namespace tessera::fsdp
