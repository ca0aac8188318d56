#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

/// The least sum of costs over variables with a few states each, where every cost depends on one
/// variable or on two. This is what a graph of ops is once the rows of every node are listed: a
/// state is a row, a cost of two is what it takes to bring a value from one row's result to the
/// other's operand.
///
///   CostNetwork network;
///   const int a = network.add_variable(2), b = network.add_variable(2);
///   network.add(a, {0, 1});                      // the second state of a costs 1
///   network.add(a, b, table({5, 0, 0, 5}));      // they had better differ
///   solve(network, {}).cost                      // 0
///
/// Variables are eliminated one by one (dynamic programming over the graph's frontier): each leaves
/// a table over its neighbours. Which comes next is chosen by weighted min-fill; program order is
/// bad (BERT-12: tables of 3e13 cells against 3e3). Steps that are the same, table by table, as one
/// done before are not done again: layers repeat.
namespace tessera::partition {

/// The number of a variable or of a state as an index.
inline size_t at(int number) { return static_cast<size_t>(number); }

class CostNetwork {
 public:
  using Table = std::shared_ptr<const std::vector<double>>;

  int add_variable(int states);
  int variables() const { return static_cast<int>(states_.size()); }
  int states(int variable) const { return states_[static_cast<size_t>(variable)]; }

  /// Costs of the states of one variable; several add up. Infinite: not allowed.
  void add(int variable, std::span<const double> costs);
  void add(int variable, int state, double cost) {
    unary_[static_cast<size_t>(variable)][static_cast<size_t>(state)] += cost;
  }
  /// Costs of pairs of states, states of `b` within those of `a`. Tables may be shared.
  void add(int a, int b, Table costs);

  struct Pair {
    int a, b;
    Table costs;
  };
  const std::vector<Pair>& pairs() const { return pairs_; }
  const std::vector<double>& unary(int variable) const {
    return unary_[static_cast<size_t>(variable)];
  }

  /// The sum for a state of each.
  double cost_of(std::span<const int> states) const;

  /// The same with only the listed states of each variable, at least one.
  CostNetwork restricted(std::span<const std::vector<int>> keep) const;

 private:
  std::vector<int> states_;
  std::vector<std::vector<double>> unary_;
  std::vector<Pair> pairs_;
};

struct SolveLimits {
  /// Entries of the largest table that may be made, and pairs of entry and state that may be looked
  /// at for it. A larger one is split, which gives a lower bound in place of the least sum.
  double table = 4e6;
  double cells = 3e9;
};

struct Solution {
  std::vector<int> states;
  double cost = 0;         ///< of these states
  double lower_bound = 0;  ///< no states cost less; equal to `cost` if nothing was split
  bool exact = true;
  double cells = 0;          ///< that were looked at
  double largest_table = 0;  ///< in entries
  int width = 0;             ///< the most neighbours that a variable had
};

/// Infinite cost if there is no allowed combination.
Solution solve(const CostNetwork& network, const SolveLimits& limits);

/// The best of the listed states of each variable, in the numbers of the whole network. The lower
/// bound is for these states only.
Solution solve_within(const CostNetwork& network, std::span<const std::vector<int>> keep,
                      const SolveLimits& limits);

/// The order in which `solve` eliminates variables.
std::vector<int> elimination_order(const CostNetwork& network);

}  // namespace tessera::partition
