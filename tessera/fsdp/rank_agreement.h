#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "tessera/comm/group.h"
#include "tessera/mesh/device_mesh.h"

/// Ranks that need different parameters agree on what they send. A gather is a collective: a rank
/// that skips a layer must still take part in the gathers of those that use it. So no rank starts
/// one by itself; ranks meet in rounds, one small all_gather each:
///
///   rank 0 needs group 1     rank 1 needs group 3     ->  both gather 1, then 3
///   rank 0 needs group 2     rank 1 ended backward    ->  both gather 2
///   rank 0 ended backward    rank 1 ended backward    ->  both reduce the same gradients
///
/// A rank goes on computing until it needs a group that it does not have, and waits for a round
/// there. Nothing that a rank decides alone (what it keeps, what it frees, how it computes) changes
/// what the others call.
namespace tessera::fsdp {

class RankAgreement {
 public:
  explicit RankAgreement(const DeviceMesh& mesh);

  const DeviceMesh& mesh() const { return mesh_; }

  /// Says that this rank has ended its part of the step, in place of a group's number.
  static constexpr int64_t kEnded = -1;

  /// A round: blocks until all ranks have come to one. The numbers of the groups that any rank
  /// needs, ascending; none if all have ended.
  std::vector<int64_t> exchange(int64_t needed) const;

  /// Whether any rank says yes, for each of the questions. All ranks ask equally many.
  std::vector<uint8_t> any(const std::vector<uint8_t>& mine) const;

 private:
  DeviceMesh mesh_;
  std::shared_ptr<const comm::Group> group_;  // of all axes; nullptr: one rank
};

}  // namespace tessera::fsdp
