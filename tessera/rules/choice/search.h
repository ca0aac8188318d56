#pragma once

#include <functional>
#include <string>
#include <vector>

#include "tessera/rules/choice/candidates.h"
#include "tessera/rules/choice/choose.h"

/// The search for one row per axis: combinations come cheapest guess first, the plan's true cost
/// decides, and the search ends when nothing that is left can be cheaper.
namespace tessera::rules {

/// The row taken on each axis, as an index into Candidates::of_axis.
using Picks = std::vector<int>;

struct SearchLimits {
  int priced = 8;    ///< combinations that get their true price
  int seen = 4'000;  ///< and that are looked at for that
  /// A guess may be too high by so much (moves of several axes may merge into one).
  double slack = 2.0;
  bool stop_when_free = true;
};

/// A combination that the search came by.
struct Priced {
  Choice choice;  ///< empty if there is a conflict
  Picks picks;
  double work = 1;       ///< of the busiest rank, where 1 is an equal share
  double memory = 0;     ///< of operands and results, in shares; only good to compare
  std::string conflict;  ///< why these rows are not legal together
};
using SeePriced = std::function<void(Priced&&)>;

/// The best choice; `see`, if given, is told of every combination in the order of the search.
Choice search_rows(const Rule& rule, const Candidates& candidates, const SearchLimits& limits,
                   const SeePriced& see = nullptr);

/// A choice of a rule that places all axes at once, priced; infinite seconds if it cannot be
/// reached.
Choice price_joint(const Rule& rule, const OpCall& call, const JointRow& row);

}  // namespace tessera::rules
