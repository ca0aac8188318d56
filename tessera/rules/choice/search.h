#pragma once

#include <functional>
#include <string>
#include <vector>

#include "tessera/rules/choice/candidates.h"
#include "tessera/rules/choice/choose.h"

/// The search for one row per axis: combinations are visited by increasing estimate, the plan's
/// true cost decides, and the search ends when no remaining combination can be cheaper.
namespace tessera::rules {

/// The row of each axis, as an index into Candidates::of_axis.
using Picks = std::vector<int>;

struct SearchLimits {
  int priced = 8;    ///< combinations that are priced exactly
  int seen = 4'000;  ///< and that are visited for that
  /// The factor by which an estimate may be too high (moves of several axes may merge into one).
  double slack = 2.0;
  bool stop_when_free = true;
};

/// A visited combination.
struct Priced {
  Choice choice;  ///< empty if there is a conflict
  Picks picks;
  double work = 1;       ///< of the busiest rank, where 1 is an equal share
  double memory = 0;     ///< of operands and results, in fractions; only for comparison
  std::string conflict;  ///< why these rows conflict
};
using SeePriced = std::function<void(Priced&&)>;

/// Returns the best choice; calls `see`, if given, with every combination in search order.
Choice search_rows(const Rule& rule, const Candidates& candidates, const SearchLimits& limits,
                   const SeePriced& see = nullptr);

/// Prices a choice of a rule that places all axes at once; infinite seconds if it cannot be
/// reached.
Choice price_joint(const Rule& rule, const OpCall& call, const JointRow& row);

}  // namespace tessera::rules
