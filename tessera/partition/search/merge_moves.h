#pragma once

#include <vector>

#include "tessera/partition/graph/assignment.h"
#include "tessera/partition/search/move_costs.h"

namespace tessera::partition {

/// A sharding in which nodes read a value, and the first of these nodes.
struct NeededForm {
  Sharding sharding;
  size_t first_reader = 0;
};

/// The redistributions that bring a value from `produced` to all the forms that its readers need,
/// at the least cost and, of equal cost, with the fewest collectives. Each form is made from what
/// was produced or from another form.
///
///   P(sum) -> R                  all_reduce, not reduce_scatter and all_gather
///   P(sum) -> S0                 reduce_scatter, not all_reduce and slice
///   P(sum) -> R and S0           all_reduce, of which S0 is a slice: one collective for two
///   S0     -> R and S1           one all_gather, of which S1 is a slice, or one all_to_all more,
///                                if that costs less
///
/// `also`: a form that no reader needs, but that others may be made from; undefined: none. It is
/// made only if that helps.
std::vector<Redistribution> merge_moves(program::ValueId value, const Sharding& produced,
                                        std::vector<NeededForm> needed, const Sharding& also,
                                        MoveCosts& moves);

}  // namespace tessera::partition
