#include "tessera/partition/search/cost_network.h"

#include <algorithm>
#include <limits>
#include <map>

#include "tessera/base/errors.h"
#include "tessera/partition/search/min_sum.h"

namespace tessera::partition {
namespace {

/// Costs over some variables, the last one's states side by side.
struct Factor {
  std::vector<int> variables;
  CostNetwork::Table costs;
};

class Elimination {
 public:
  Elimination(const CostNetwork& network, const SolveLimits& limits)
      : network_(network),
        limits_(limits),
        of_(static_cast<size_t>(network.variables())),
        done_(static_cast<size_t>(network.variables())) {
    for (int v = 0; v < network.variables(); ++v) {
      const auto& costs = network.unary(v);
      if (std::ranges::any_of(costs, [](double c) { return c != 0; })) add({{v}, interned(costs)});
    }
    for (const auto& pair : network.pairs()) add({{pair.a, pair.b}, pair.costs});
  }

  Solution run() {
    const auto order = elimination_order(network_);
    for (const int v : order) eliminate(v);
    Solution out;
    out.lower_bound = constant_;
    out.exact = exact_;
    out.cells = cells_;
    out.largest_table = largest_;
    out.width = width_;
    out.states.assign(of_.size(), 0);
    for (size_t i = order.size(); i-- > 0;) {
      out.states[static_cast<size_t>(order[i])] = best_state(order[i], out.states);
      done_[static_cast<size_t>(order[i])] = false;
    }
    out.cost = network_.cost_of(out.states);
    if (exact_) out.lower_bound = out.cost;  // the same sum in another order
    return out;
  }

 private:
  void add(Factor factor) {
    for (const int v : factor.variables) of_[static_cast<size_t>(v)].push_back(factors_.size());
    factors_.push_back(std::move(factor));
  }

  /// One table for each contents, so that steps that are alike have the same tables.
  CostNetwork::Table interned(const std::vector<double>& costs) {
    auto& table = tables_[costs];
    if (!table) table = std::make_shared<const std::vector<double>>(costs);
    return table;
  }

  double entries(const std::vector<int>& variables) const {
    double out = 1;
    for (const int v : variables) out *= network_.states(v);
    return out;
  }

  static void unite(std::vector<int>& into, const Factor& factor, int without) {
    for (const int v : factor.variables) {
      if (v != without && std::ranges::find(into, v) == into.end()) into.push_back(v);
    }
  }

  bool fits(const std::vector<int>& around, int v) const {
    const double table = entries(around);
    return table <= limits_.table && table * network_.states(v) <= limits_.cells;
  }

  void eliminate(int v) {
    std::vector<size_t> bucket;
    for (const size_t f : of_[static_cast<size_t>(v)]) {
      if (!used(f)) bucket.push_back(f);
    }
    if (bucket.empty()) {  // nothing depends on it
      done_[static_cast<size_t>(v)] = true;
      return;
    }
    done_[static_cast<size_t>(v)] = true;
    // In parts only if one table would be too large.
    std::vector<std::vector<size_t>> groups;
    std::vector<std::vector<int>> around;
    for (const size_t f : bucket) {
      bool placed = false;
      for (size_t g = 0; g < groups.size() && !placed; ++g) {
        std::vector<int> united = around[g];
        unite(united, factors_[f], v);
        if (!fits(united, v)) continue;
        around[g] = std::move(united);
        groups[g].push_back(f);
        placed = true;
      }
      if (placed) continue;
      groups.push_back({f});
      around.emplace_back();
      unite(around.back(), factors_[f], v);
    }
    exact_ = exact_ && groups.size() <= 1;
    for (size_t g = 0; g < groups.size(); ++g) {
      width_ = std::max(width_, static_cast<int>(around[g].size()));
      const Step& step = minimum(v, groups[g], around[g]);
      constant_ += step.least;
      if (!around[g].empty()) add({around[g], step.above});
    }
  }

  /// True once one of its variables is gone: the table that this left has its costs.
  bool used(size_t f) const {
    return std::ranges::any_of(factors_[f].variables,
                               [&](int v) { return done_[static_cast<size_t>(v)]; });
  }

  /// The table over `around` of the least sum over the states of v: its least entry, and what the
  /// others have above it. So tables become equal where layers repeat.
  struct Step {
    double least = 0;
    CostNetwork::Table above;
  };

  const Step& minimum(int v, const std::vector<size_t>& group, const std::vector<int>& around) {
    std::vector<uint64_t> key = {static_cast<uint64_t>(network_.states(v))};
    for (const size_t f : group) {
      key.push_back(reinterpret_cast<uintptr_t>(factors_[f].costs.get()));
      for (const int u : factors_[f].variables) {
        const auto at = std::ranges::find(around, u) - around.begin();
        key.push_back(u == v ? ~uint64_t{0} : static_cast<uint64_t>(at));
      }
      key.push_back(~uint64_t{1});
    }
    Step& known = steps_[std::move(key)];
    if (known.above) return known;
    std::vector<double> costs = compute(v, group, around);
    known.least = *std::ranges::min_element(costs);
    if (known.least < std::numeric_limits<double>::infinity()) {
      for (double& cost : costs) cost -= known.least;
    }
    constexpr size_t kSmall = 1 << 16;
    known.above = costs.size() <= kSmall
                      ? interned(costs)
                      : std::make_shared<const std::vector<double>>(std::move(costs));
    return known;
  }

  /// A factor's costs with v's states side by side, and what one state of each other variable is
  /// worth in steps.
  struct Turned {
    CostNetwork::Table costs;
    std::vector<size_t> stride;  // by variable of `around`
  };

  Turned turned(const Factor& factor, int v, const std::vector<int>& around) const {
    std::vector<int> variables;
    for (const int u : factor.variables) {
      if (u != v) variables.push_back(u);
    }
    variables.push_back(v);
    Turned out{factor.costs, std::vector<size_t>(around.size(), 0)};
    size_t stride = 1;
    for (size_t i = variables.size(); i-- > 0;) {
      const auto at = std::ranges::find(around, variables[i]);
      if (at != around.end()) out.stride[static_cast<size_t>(at - around.begin())] = stride;
      stride *= static_cast<size_t>(network_.states(variables[i]));
    }
    if (factor.variables.back() != v) out.costs = transposed(factor, variables);
    return out;
  }

  CostNetwork::Table transposed(const Factor& factor, const std::vector<int>& variables) const {
    const size_t n = variables.size();
    std::vector<size_t> stride(n), count(n), at(n, 0);
    size_t step = 1;
    for (size_t i = factor.variables.size(); i-- > 0;) {
      const auto place = std::ranges::find(variables, factor.variables[i]) - variables.begin();
      stride[static_cast<size_t>(place)] = step;
      count[static_cast<size_t>(place)] = static_cast<size_t>(network_.states(factor.variables[i]));
      step *= count[static_cast<size_t>(place)];
    }
    auto out = std::make_shared<std::vector<double>>(factor.costs->size());
    size_t from = 0;
    for (double& entry : *out) {
      entry = (*factor.costs)[from];
      for (size_t i = n; i-- > 0;) {
        from += stride[i];
        if (++at[i] < count[i]) break;
        from -= stride[i] * count[i];
        at[i] = 0;
      }
    }
    return out;
  }

  std::vector<double> compute(int v, const std::vector<size_t>& group,
                              const std::vector<int>& around) {
    std::vector<Turned> factors;
    for (const size_t f : group) factors.push_back(turned(factors_[f], v, around));
    std::vector<SumTerm> terms;
    for (const Turned& factor : factors) terms.push_back({factor.costs->data(), factor.stride});
    std::vector<size_t> counts;
    for (const int u : around) counts.push_back(static_cast<size_t>(network_.states(u)));
    largest_ = std::max(largest_, entries(around));
    return min_sum(counts, static_cast<size_t>(network_.states(v)), terms, cells_);
  }

  /// Given the states of all that were eliminated later. Factors of variables eliminated before do
  /// not count: what they left does.
  int best_state(int v, const std::vector<int>& chosen) const {
    std::vector<double> sum(static_cast<size_t>(network_.states(v)), 0.0);
    for (const size_t f : of_[static_cast<size_t>(v)]) {
      const Factor& factor = factors_[f];
      const bool earlier = std::ranges::any_of(
          factor.variables, [&](int u) { return u != v && done_[static_cast<size_t>(u)]; });
      if (earlier) continue;
      size_t base = 0, step = 1, stride = 0;
      for (size_t i = factor.variables.size(); i-- > 0;) {
        const int u = factor.variables[i];
        if (u == v) {
          stride = step;
        } else {
          base += step * static_cast<size_t>(chosen[static_cast<size_t>(u)]);
        }
        step *= static_cast<size_t>(network_.states(u));
      }
      for (size_t s = 0; s < sum.size(); ++s) sum[s] += (*factor.costs)[base + s * stride];
    }
    return static_cast<int>(std::ranges::min_element(sum) - sum.begin());
  }

  const CostNetwork& network_;
  const SolveLimits& limits_;
  std::vector<Factor> factors_;
  std::vector<std::vector<size_t>> of_;  // factors by variable
  std::vector<bool> done_;               // eliminated
  std::map<std::vector<double>, CostNetwork::Table> tables_;
  std::map<std::vector<uint64_t>, Step> steps_;
  double constant_ = 0;
  bool exact_ = true;
  double cells_ = 0, largest_ = 0;
  int width_ = 0;
};

}  // namespace

int CostNetwork::add_variable(int states) {
  ensure(states > 0, "a variable without states");
  states_.push_back(states);
  unary_.emplace_back(static_cast<size_t>(states), 0.0);
  return variables() - 1;
}

void CostNetwork::add(int variable, std::span<const double> costs) {
  for (size_t s = 0; s < costs.size(); ++s) add(variable, static_cast<int>(s), costs[s]);
}

void CostNetwork::add(int a, int b, Table costs) {
  ensure(a != b, "a pair of one variable");
  ensure(costs->size() == static_cast<size_t>(states(a)) * static_cast<size_t>(states(b)),
         "a table of another size");
  // One state: a cost of the other alone, which keeps what many read from joining them all.
  if (states(a) == 1) return add(b, *costs);
  if (states(b) == 1) return add(a, *costs);
  pairs_.push_back({a, b, std::move(costs)});
}

double CostNetwork::cost_of(std::span<const int> chosen) const {
  double sum = 0;
  for (size_t v = 0; v < chosen.size(); ++v) sum += unary_[v][static_cast<size_t>(chosen[v])];
  for (const auto& pair : pairs_) {
    const auto row = static_cast<size_t>(chosen[static_cast<size_t>(pair.a)]);
    const auto column = static_cast<size_t>(chosen[static_cast<size_t>(pair.b)]);
    sum += (*pair.costs)[row * static_cast<size_t>(states(pair.b)) + column];
  }
  return sum;
}

CostNetwork CostNetwork::restricted(std::span<const std::vector<int>> keep) const {
  CostNetwork out;
  for (size_t v = 0; v < keep.size(); ++v) {
    out.add_variable(static_cast<int>(keep[v].size()));
    for (size_t s = 0; s < keep[v].size(); ++s)
      out.unary_[v][s] = unary_[v][static_cast<size_t>(keep[v][s])];
  }
  // Equal parts of a shared table stay shared.
  std::map<std::pair<const void*, std::pair<std::vector<int>, std::vector<int>>>, Table> known;
  for (const Pair& pair : pairs_) {
    const auto& a = keep[static_cast<size_t>(pair.a)];
    const auto& b = keep[static_cast<size_t>(pair.b)];
    Table& table = known[{pair.costs.get(), {a, b}}];
    if (!table) {
      std::vector<double> costs;
      costs.reserve(a.size() * b.size());
      for (const int row : a) {
        for (const int column : b)
          costs.push_back((*pair.costs)[static_cast<size_t>(row * states(pair.b) + column)]);
      }
      table = std::make_shared<const std::vector<double>>(std::move(costs));
    }
    out.add(pair.a, pair.b, table);
  }
  return out;
}

Solution solve_within(const CostNetwork& network, std::span<const std::vector<int>> keep,
                      const SolveLimits& limits) {
  Solution out = solve(network.restricted(keep), limits);
  for (size_t v = 0; v < keep.size(); ++v)
    out.states[v] = keep[v][static_cast<size_t>(out.states[v])];
  return out;
}

Solution solve(const CostNetwork& network, const SolveLimits& limits) {
  return Elimination(network, limits).run();
}

}  // namespace tessera::partition
