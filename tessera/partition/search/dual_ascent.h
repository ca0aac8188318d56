#pragma once

#include <map>
#include <memory>
#include <vector>

#include "tessera/partition/search/cost_network.h"

namespace tessera::partition {

/// A lower bound on the least sum of a CostNetwork whose tables are too large to eliminate, and
/// which states cannot be part of it: sequential tree-reweighted message passing (TRW-S), that is
/// coordinate ascent on the dual of the linear-programming relaxation. The networks of programs
/// are near trees, for which the bound is exact or close to it.
///
/// One round looks at every entry of every table twice, independent of how variables are connected:
/// 32 layers of Llama on two axes are 5e6 entries, where elimination needs tables of 1e8.
///
///   DualAscent ascent(network, best.cost);
///   while (...) ascent.round();
///   ascent.bound()                    // never decreases
///   ascent.states_below(best.cost)    // every choice that costs less consists of these
class DualAscent {
 public:
  /// `above`: the cost of a known choice. What is not allowed counts as some times of it.
  DualAscent(const CostNetwork& network, double above);

  /// Costs of single variables that changed since (priced weights); messages stay.
  void set_unary(const CostNetwork& network);

  /// The cost of "not allowed". Choices that cost half of it or more count as not allowed too.
  double large() const { return large_; }

  void round();
  double bound() const { return bound_; }

  /// By variable, the states that a choice of less than `cost` may have. May be empty: there is no
  /// such choice.
  std::vector<std::vector<int>> states_below(double cost) const;

  /// A choice that follows the messages: variable by variable the state that is best with those
  /// before. Its cost is at least the bound.
  std::vector<int> decode() const;

 private:
  using Costs = std::vector<double>;
  /// A pair from the variable that comes first in the order to the other. Messages are indexed by
  /// states of their receiver.
  struct Edge {
    int first, second;
    std::shared_ptr<const Costs> by_first;   // rows: states of `first`
    std::shared_ptr<const Costs> by_second;  // rows: states of `second`
    Costs to_first, to_second;
  };

  void set_order();
  void set_edges(double large);
  Costs sum_at(int variable) const;
  /// out[t] = least of costs[s] + rows[s][t]; returns the least of out, and subtracts it.
  static double send(const Costs& costs, const Costs& rows, Costs& out);
  void forward();
  void backward();

  const CostNetwork* network_;
  double large_;
  std::vector<Costs> unary_;
  std::vector<int> order_;
  std::vector<int> place_;
  std::vector<Edge> edges_;
  std::vector<std::vector<int>> before_, after_;  // by variable: edges to others
  std::vector<double> share_;                     // of a variable's costs for each chain through it
  std::vector<Costs> excess_;                     // by state: what it costs above the bound
  double bound_ = 0;
  double checked_ = 0;  // the bound that excess_ is above
};

}  // namespace tessera::partition
