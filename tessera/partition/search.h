#pragma once

#include <cstdint>
#include <optional>

#include "tessera/partition/choice_network.h"

namespace tessera::partition {

struct SearchOptions {
  SolveLimits limits;
  /// Of tables in the first try, which gives most of the bound at little cost.
  double small_table = 2e5;
  /// Above the bound by at most so much: not improved any more; and not tried with large tables.
  double good_gap = 0.001;
  double fair_gap = 0.01;
};

/// The cheapest choice. Exact on one axis as a rule. On two the tables may be too large: then a
/// lower bound comes from split tables, and a choice from them and from solving exactly along one
/// axis at a time, in turns, until neither helps.
Solution search(const ChoiceNetwork& choices, const SearchOptions& options);
/// The same of another network of the same variables, with only the listed states of each.
Solution search_within(const ChoiceNetwork& choices, const CostNetwork& network,
                       std::span<const std::vector<int>> keep, const SearchOptions& options);

/// The cheapest choice in which a rank holds at most so many bytes of weights: a price on bytes is
/// raised until it fits. `lower_bound` holds for the limited problem. Infinite cost: not even all
/// cut does fit.
struct Limited {
  Solution solution;
  double price = 0;  ///< seconds for a byte, at which the limit is kept
};
Limited search_under(const ChoiceNetwork& choices, int64_t weight_bytes,
                     const SearchOptions& options);
/// The network with that price on weights, less up to so much of it, differently for each.
CostNetwork priced(const ChoiceNetwork& choices, double price, double spread = 0.01);

/// Bytes of weights, buffers and constants that a rank holds with a solution, and the fewest that
/// are possible.
double weight_bytes(const ChoiceNetwork& choices, const Solution& solution);
double fewest_weight_bytes(const ChoiceNetwork& choices);

}  // namespace tessera::partition
