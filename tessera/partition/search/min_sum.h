#pragma once

#include <cstddef>
#include <span>
#include <vector>

namespace tessera::partition {

/// Costs over some variables and the one that is eliminated, whose states are adjacent in memory. A
/// stride is the distance in entries between two states of a variable; 0: the costs do not depend
/// on it.
struct SumTerm {
  const double* costs;
  std::vector<size_t> stride;  ///< by variable that stays
};

/// For each combination of the variables that stay, the least sum of the terms over the `states` of
/// the eliminated one; the last variable's results are adjacent. `counts`: states of those that
/// stay. `cells` grows by the sums that were looked at.
///
/// Where a term with one variable that stays is infinite for most states (a value's copies exist
/// for one row of its maker only), the others are looked up for the remaining states alone.
std::vector<double> min_sum(std::span<const size_t> counts, size_t states,
                            std::span<const SumTerm> terms, double& cells);

}  // namespace tessera::partition
