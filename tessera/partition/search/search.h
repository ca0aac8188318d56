#pragma once

#include <cstdint>
#include <memory>
#include <optional>

#include "tessera/partition/search/choice_network.h"
#include "tessera/partition/search/dual_ascent.h"

namespace tessera::partition {

struct SearchOptions {
  SolveLimits limits;
  /// The limit of tables in attempts that may fail.
  SolveLimits small{.table = 2e5, .cells = 5e7};
  /// Rounds of dual ascent at most, on two axes.
  int rounds = 60;
  /// A choice whose gap to the bound is at most this fraction is not improved any more.
  double good_gap = 0.001;
};

/// Searches for the cheapest choice.
///
/// One axis: variables are eliminated, which is exact. Two axes: the tables of that are too large
/// for programs of some layers. Dual ascent gives a lower bound and choices to begin with; states
/// that no cheaper choice can have are left out, and what remains is eliminated, which is exact
/// again. Where that is still too large, the choice is improved exactly along one axis at a time,
/// in turns, and the bound says how far it may be from the optimum.
///
/// Searches of one object after the other, with other prices or without some states, begin with the
/// messages of the one before.
class PlanSearch {
 public:
  PlanSearch(const ChoiceNetwork& choices, const SearchOptions& options);
  ~PlanSearch();

  /// `network`: of the same variables, that of the choices or priced(); with only the listed states
  /// of each.
  Solution run(const CostNetwork& network, std::span<const std::vector<int>> keep);

  /// By variable, the states that a choice of the network with less than `cost` may have.
  std::vector<std::vector<int>> states_below(const CostNetwork& network, double cost);

 private:
  Solution by_ascent(const CostNetwork& network, std::span<const std::vector<int>> keep);
  void prepare_ascent(const CostNetwork& network, double cost);
  Solution start(const CostNetwork& network, std::span<const std::vector<int>> keep);
  bool try_exact(const CostNetwork& network, Solution& best) const;
  void improve(const CostNetwork& network, std::span<const std::vector<int>> keep,
               Solution& best) const;
  Solution in_turns(const CostNetwork& network, Solution now, int first,
                    std::span<const std::vector<int>> keep) const;

  const ChoiceNetwork& choices_;
  SearchOptions options_;
  int axes_;
  std::unique_ptr<DualAscent> ascent_;
  std::vector<int> last_;  // the states that were found last
};

Solution search(const ChoiceNetwork& choices, const SearchOptions& options);

/// The cheapest choice in which a rank holds at most so many bytes of weights: a price on bytes is
/// raised until it fits, which also bounds the optimum; what the bound leaves is searched exactly
/// if it is not too much. `lower_bound` holds for the limited problem. Infinite cost: it does not
/// fit even with everything sharded.
struct Limited {
  Solution solution;
  double price = 0;  ///< seconds for a byte, at which the limit is kept
};
Limited search_under(const ChoiceNetwork& choices, int64_t weight_bytes,
                     const SearchOptions& options);
/// The network with this price on each byte of weights, reduced by a fraction of up to `spread`
/// that differs from weight to weight.
CostNetwork priced(const ChoiceNetwork& choices, double price, double spread = 0.01);

/// Bytes of weights, buffers and constants that a rank holds with a solution, and the fewest that
/// are possible.
double weight_bytes(const ChoiceNetwork& choices, const Solution& solution);
double fewest_weight_bytes(const ChoiceNetwork& choices);

}  // namespace tessera::partition
