#pragma once

#include <cstdint>
#include <memory>
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
namespace tessera::fsdp {

class RankAgreement {
 public:
  explicit RankAgreement(const DeviceMesh& mesh);

  const DeviceMesh& mesh() const { return mesh_; }

  /// Passed instead of a group's number: this rank has finished its part of the step.
  static constexpr int64_t kEnded = -1;

  /// One round; blocks until all ranks have joined it. Returns the numbers of the groups that any
  /// rank needs, ascending; empty if all ranks have ended.
  std::vector<int64_t> exchange(int64_t needed) const;

  /// Element-wise logical OR over the ranks. All ranks must pass the same number of elements.
  std::vector<uint8_t> any(const std::vector<uint8_t>& mine) const;

 private:
  DeviceMesh mesh_;
  std::shared_ptr<const comm::Group> group_;  // of all axes; nullptr: one rank
};

}  // namespace tessera::fsdp
