#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "tessera/comm/group.h"
#include "tessera/mesh/device_mesh.h"

/// Agreement on gathers between ranks that use different parameters. A gather is a collective: a
/// rank that skips a layer must still take part in the gathers of ranks that use it. So no rank
/// starts one alone; ranks synchronize in rounds of one small all_gather each:
///
///   rank 0 needs group 1     rank 1 needs group 3     ->  both gather 1, then 3
///   rank 0 needs group 2     rank 1 ended backward    ->  both gather 2
///   rank 0 ended backward    rank 1 ended backward    ->  both reduce the same gradients
///
/// A rank computes until it needs a group that is not gathered, and joins a round there. Decisions
/// that a rank takes alone (what it keeps, what it frees, how it computes) do not change which
/// collectives the others call.
///
/// Rounds are paired by their order alone, so a rank that skips a backward would be paired with the
/// others' previous one from then on. What shows that is compared where a backward ends:
///
///   rank 0: forward, no backward, forward, backward     rank 1: forward, backward    ->  an error
namespace tessera::fsdp {

/// What a rank reports at the end of a backward.
struct BackwardEnd {
  enum Flag : uint8_t {
    kTookPart = 1,    ///< this rank used the group in this step, or has unreduced gradients of it
    kReduces = 2,     ///< this backward reduces the group's gradients
    kAccumulates = 4  ///< it keeps them: set_requires_gradient_sync(false)
  };
  std::vector<uint8_t> groups;  ///< flags by group number; 0: destroyed on this rank
  // Since the end of the last backward; recomputation and forwards without gradients do not count.
  int32_t forwards = 0;   ///< of modules that are observed (ComputeDtypeScope)
  int32_t abandoned = 0;  ///< those among them that no backward can reach any more
};

/// Throws InvalidArgument, on all ranks alike, if these cannot be the ends of one backward.
/// ends[i] is that of ranks[i]. Ranks may differ in the number of forwards, and in how many of them
/// are abandoned, but a rank that has more of both has most likely skipped a backward.
void check_same_backward(std::span<const BackwardEnd> ends, std::span<const int> ranks);

class RankAgreement {
 public:
  explicit RankAgreement(const DeviceMesh& mesh);

  const DeviceMesh& mesh() const { return mesh_; }

  // Passed instead of a group's number: this rank has finished its part of the step.
  static constexpr int64_t kEndedBackward = -1;
  static constexpr int64_t kResharded = -2;

  /// One round; blocks until all ranks have joined it. Returns the numbers of the groups that any
  /// rank needs, ascending; empty if all ranks have ended. Throws InvalidArgument, on all ranks
  /// alike, if they have ended in different ways.
  std::vector<int64_t> exchange(int64_t needed) const;

  /// Element-wise logical OR of the flags over the ranks, after check_same_backward(). All ranks
  /// must pass the same number of groups.
  std::vector<uint8_t> end_backward(const BackwardEnd& mine) const;

 private:
  DeviceMesh mesh_;
  std::shared_ptr<const comm::Group> group_;  // of all axes; nullptr: one rank
};

}  // namespace tessera::fsdp
