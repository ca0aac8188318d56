#pragma once

#include <string>
#include <vector>

#include "tessera/partition/search/propagate.h"

namespace tessera::partition {

/// A plan that was searched for instead of given, and the reasons for it.
///
///   weights                      placed  otherwise  costs more
///   layers.*.mlp.up_proj.weight  S0      R          1.31 ms
///   ...
///   chosen: 2.1 ms (0.8 compute, 1.3 communication in 9 collectives), 131 MiB of weights a rank
///   next best: layers.*.self_attn.o_proj.weight as S0, 2.2 ms
///   nothing sharded: 5.9 ms, 1.02 GiB of weights a rank
///   at most 0.4 % above the optimum
struct AutoPlan {
  Plan plan;  ///< gives the same assignment again
  Assignment assignment;

  /// Weights of one role in all layers: what else they could be, all else chosen anew.
  struct Reason {
    std::string weights;    ///< "layers.*.mlp.up_proj.weight"
    std::string placed;     ///< of the first of them
    std::string otherwise;  ///< in the best assignment that places all of them otherwise
    double seconds = 0;     ///< that this takes more; infinite: there is none
  };
  std::vector<Reason> reasons;  ///< by size, largest first

  /// The least of those, with `next_best_differs` placed otherwise. It and `unsharded` may take
  /// less time than the choice where they hold more than the limit.
  Totals next_best;
  std::string next_best_differs;
  Totals unsharded;
  std::optional<int64_t> weight_limit;  ///< bytes of weights a rank

  /// How far the choice may be from the optimum: 0.004 is 0.4 %.
  double gap() const;
  std::string to_text() const;
};

struct AutoOptions {
  PropagateOptions choose;
  /// Roles that are looked at for reasons; 0: none.
  size_t reasons = 12;
};

/// The cheapest plan for a program on a mesh. What `given` demands stays; it may be empty.
AutoPlan auto_plan(const program::ExportedProgram& program, const DeviceMesh& mesh, Plan given,
                   const AutoOptions& options);
inline AutoPlan auto_plan(const program::ExportedProgram& program, const DeviceMesh& mesh) {
  return auto_plan(program, mesh, {}, {});
}

}  // namespace tessera::partition
