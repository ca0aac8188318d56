#pragma once

#include <span>
#include <vector>

#include "tessera/partition/manifest/groups.h"
#include "tessera/partition/rewrite/emitter.h"
#include "tessera/plan/plan.h"
#include "tessera/sharding/boxes.h"

namespace tessera::partition {

/// Writes one step of a plan as nodes of the program of one rank: lower_plan.h lists which. The
/// mesh of the step has that rank as its own. `emit` and `step` must outlive it.
///
///   StepWriter writer(emit, step);
///   ValueId x = writer.start(value);                                 // _c10d_functional.all_...
///   if (writer.communicates()) x = writer.finish(emit.wait(x));      // arranges what arrived
class StepWriter {
 public:
  StepWriter(Emitter& emit, const plan::Step& step);

  /// Writes the start of the collective, or the whole of a local step.
  program::ValueId start(program::ValueId x);

  /// Arranges what arrived; the value was waited for.
  program::ValueId finish(program::ValueId x);

  bool communicates() const { return !plan::is_local(step_.move) && members_.size() > 1; }

 private:
  using Shapes = std::vector<std::vector<int64_t>>;

  /// Of an all_to_all.
  struct Exchange {
    std::vector<Overlap> to_peer, from_peer;
    bool even = false;  ///< all pieces have one shape: they travel as rows
  };

  const Coordinate& me() const { return members_.coordinates[members_.me]; }
  int64_t ranks() const { return static_cast<int64_t>(members_.size()); }

  Shapes shapes_of(const Sharding& sharding) const;
  ReduceOp reduce_op() const;
  int64_t averaged_ranks() const;
  double rescale_factor() const;

  program::ValueId keep_one(program::ValueId x);
  program::ValueId start_gather(program::ValueId x);
  program::ValueId finish_gather(program::ValueId gathered);
  program::ValueId start_scatter(program::ValueId x);
  program::ValueId start_exchange(program::ValueId x);
  program::ValueId finish_exchange(program::ValueId received);

  std::vector<Overlap> gathered_places() const;
  Exchange exchange() const;
  program::IntOrValue count_of(program::ValueId x, const Overlap& place);
  program::Size flat_size(program::ValueId x, std::span<const int64_t> shape) const;

  Emitter& emit_;
  const plan::Step& step_;
  GroupMembers members_;
  program::ValueId source_{};  // of an all_to_all: its symbolic sizes are the result's
};

}  // namespace tessera::partition
