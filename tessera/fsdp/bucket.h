#pragma once

#include <memory>
#include <span>
#include <vector>

#include "tessera/fsdp/data_mesh.h"
#include "tessera/fsdp/flat_layout.h"
#include "tessera/fsdp/gathered.h"
#include "tessera/fsdp/group_options.h"
#include "tessera/fsdp/reduction.h"

/// Groups that travel together: gathered by one all_gather, let go together, their gradients
/// reduced by one reduce_scatter. Every group begins alone; once the order of a step is known, the
/// GatherScheduler puts neighbours together whose messages would cost more to start than to carry
/// (merge.h).
namespace tessera::fsdp {

class ParamGroup;

class Bucket : public std::enable_shared_from_this<Bucket> {
 public:
  /// Of groups that lie alike (can_join), which belong to it from now on.
  static std::shared_ptr<Bucket> make(std::vector<ParamGroup*> members);

  /// Whether one collective can carry both.
  static bool can_join(const ParamGroup& a, const ParamGroup& b);

  /// Whether its members still lie alike: their options may have changed.
  bool holds_together() const;

  std::span<ParamGroup* const> members() const { return members_; }
  const GroupOptions& options() const;
  const DataMesh& mesh() const;
  size_t number() const;  ///< of its first group
  /// While it is gathered.
  int64_t gathered_bytes() const { return gather_layout_->gathered_bytes(); }

  bool is_gathered() const { return gathered_.stage() == Gathered::Stage::there; }
  /// Whether somebody holds any of what is gathered, as an op under way does.
  bool is_held() const { return is_gathered() && gathered_.is_held(); }
  bool start_gather();  ///< returns at once; false: it is gathered or under way, or has no need
  /// A member's parameters are there when it returns, and current; those of other members may be
  /// stale until they are asked for. Constant time if they are there: every op that uses one asks.
  void gather_for(const ParamGroup& member);
  /// Whether a member's parameters are neither there nor under way.
  bool needs_gather(const ParamGroup& member) const;
  void gather_anew();                         ///< starts a gather of all ranks, whatever is there
  void finish_gather() { gathered_.wait(); }  ///< of the one under way, if any
  void drop_prefetch() { gathered_.release(); }  ///< what was started is not used after all
  void release();
  void release_after_backward();  ///< unless the options say that it stays
  /// Lets go of all but this rank's part of a smaller group, from which the next gather is made; of
  /// everything, if the options name no such group.
  void release_after_forward();
  /// A parameter by its place among those of all members.
  const at::Tensor& whole(size_t param) const { return gathered_.whole(param); }

  /// Where the members' gradients are added.
  Reduction& reduction();
  /// One more parameter's gradient has come; true if none is missing.
  bool count_arrival();
  /// Starts to reduce what has come, with what earlier backwards kept back.
  void reduce_arrived();
  void forget_arrived();  ///< a backward failed

 private:
  /// A flat tensor of a member's shards.
  struct PieceOf {
    const ParamGroup* member;
    size_t slot;
  };

  explicit Bucket(std::vector<ParamGroup*> members);
  void start(bool async);
  bool is_current() const;
  bool is_current(const ParamGroup& member) const;
  at::Tensor shard_of_slot(size_t slot) const;

  std::vector<ParamGroup*> members_;
  std::shared_ptr<const FlatLayout> gather_layout_;  // in the type of gathered parameters
  std::shared_ptr<const FlatLayout> reduce_layout_;  // in the type of the reduction
  std::vector<std::vector<PieceOf>> sources_;        // by slot of what is gathered
  Gathered gathered_;
  std::vector<int64_t> versions_;         // of the members' shards that it was gathered from
  std::vector<at::Tensor> parts_;         // for a gather in the smaller group
  std::shared_ptr<Reduction> reduction_;  // that gradients are added to
  int awaited_ = -1;  // gradients that are still to come; -1: no backward has brought one
};

}  // namespace tessera::fsdp
