#pragma once

#include <memory>
#include <span>
#include <vector>

#include "tessera/fsdp/buffers/data_mesh.h"
#include "tessera/fsdp/buffers/flat_layout.h"
#include "tessera/fsdp/buffers/gathered.h"
#include "tessera/fsdp/buffers/group_options.h"
#include "tessera/fsdp/buffers/reduction.h"

/// One or more ParamGroups that share collectives: one all_gather, one reshard, one reduce_scatter
/// of their gradients. Every group starts in a bucket of its own. Once the order of a step is
/// known, the GatherScheduler merges consecutive groups whose messages are dominated by latency
/// (fsdp/order/merge.h).
namespace tessera::fsdp {

class ParamGroup;

class Bucket : public std::enable_shared_from_this<Bucket> {
 public:
  /// The members must satisfy can_join() pairwise. They belong to this bucket from now on.
  static std::shared_ptr<Bucket> make(std::vector<ParamGroup*> members);

  /// Whether one collective can carry both: same mesh, same device, compatible options.
  static bool can_join(const ParamGroup& a, const ParamGroup& b);

  /// Whether the members can still share collectives; their options may have changed.
  bool is_compatible() const;

  std::span<ParamGroup* const> members() const { return members_; }
  const GroupOptions& options() const;
  const DataMesh& mesh() const;
  size_t number() const;  ///< of its first group
  /// Bytes of gathered memory while the bucket is unsharded.
  int64_t gathered_bytes() const { return gather_layout_->gathered_bytes(); }

  /// Whether ops compute with a copy of the shards: gathered, converted, or on another device.
  bool computes_on_copy() const;
  bool is_gathered() const { return gathered_.stage() == Gathered::Stage::there; }
  /// Whether anything else references the gathered memory, for example an op in progress.
  bool is_held() const { return is_gathered() && gathered_.is_held(); }
  bool start_gather();  ///< asynchronous; false: gathered, in flight, or no axis to gather over
  /// Blocks until the parameters of `member` are gathered and up to date; those of other members
  /// may be stale until requested. Constant time if they are: every op that uses a parameter calls
  /// it.
  void gather_for(const ParamGroup& member);
  /// Whether the parameters of `member` are neither gathered nor in flight.
  bool needs_gather(const ParamGroup& member) const;
  void restart_gather();                      ///< releases, then gathers over the shard axis
  void finish_gather() { gathered_.wait(); }  ///< waits for the one in flight, if any
  void drop_prefetch();                       ///< discards an unused gather
  void release();
  void release_after_backward();  ///< unless the options keep it unsharded
  /// Frees the gathered parameters. If the options name a smaller group, keeps this rank's shard
  /// for that group, from which the next gather is made.
  void release_after_forward();
  /// A gathered parameter, by its index among the parameters of all members.
  const at::Tensor& whole(size_t param) const { return gathered_.whole(param); }

  /// The reduction that gradients of the members are added to.
  Reduction& reduction();
  /// Counts one parameter's gradient; returns true once all expected gradients have arrived.
  bool count_arrival();
  /// Starts the reduction of the gradients that have arrived, including those that earlier
  /// backwards kept unreduced.
  void reduce_arrived();
  void reset_arrivals();  ///< after a failed backward

 private:
  /// A flat tensor of a member's shards.
  struct PieceOf {
    const ParamGroup* member;
    size_t slot;
  };

  explicit Bucket(std::vector<ParamGroup*> members);
  void start(bool async);
  void copy_shards();
  bool is_current() const;
  bool is_current(const ParamGroup& member) const;
  at::Tensor shard_of_slot(size_t slot) const;

  std::vector<ParamGroup*> members_;
  std::shared_ptr<const FlatLayout> gather_layout_;  // with the dtype of gathered parameters
  std::shared_ptr<const FlatLayout> reduce_layout_;  // with the dtype of the reduction
  std::vector<std::vector<PieceOf>> sources_;        // by slot of the gather layout
  Gathered gathered_;
  std::vector<int64_t> versions_;         // versions of the members' shards at the gather
  std::vector<at::Tensor> parts_;         // inputs of a gather in the smaller group
  std::shared_ptr<Reduction> reduction_;  // accumulates gradients
  int awaited_ = -1;                      // gradients not yet arrived; -1: none has arrived
};

}  // namespace tessera::fsdp
