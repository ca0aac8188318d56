#include "tessera/partition/search.h"

#include <algorithm>
#include <cmath>

namespace tessera::partition {
namespace {

using States = std::vector<std::vector<int>>;

double gap(const Solution& s) {
  return s.cost > 0 && std::isfinite(s.cost) ? (s.cost - s.lower_bound) / s.cost : 0;
}

States common(States a, std::span<const std::vector<int>> b) {
  for (size_t v = 0; v < a.size(); ++v) {
    std::erase_if(a[v], [&](int s) { return std::ranges::find(b[v], s) == b[v].end(); });
  }
  return a;
}

class Searcher {
 public:
  Searcher(const ChoiceNetwork& choices, const CostNetwork& network, int axes,
           const SearchOptions& options)
      : choices_(choices), network_(network), axes_(axes), options_(options) {}

  Solution run(std::span<const std::vector<int>> keep) const {
    Solution best = solve_within(
        network_, keep,
        {std::min(options_.small_table, options_.limits.table), options_.limits.cells});
    if (best.exact || !std::isfinite(best.lower_bound)) return best;
    improve(best, keep);
    if (gap(best) <= options_.fair_gap) return best;
    Solution more = solve_within(network_, keep, options_.limits);
    const bool better = more.cost < best.cost;
    const double bound = std::max(best.lower_bound, more.lower_bound);
    if (better) best = std::move(more);
    best.lower_bound = bound;
    if (!best.exact) improve(best, keep);
    return best;
  }

 private:
  /// From the choice itself and from everything whole, beginning with either axis.
  void improve(Solution& best, std::span<const std::vector<int>> keep) const {
    if (axes_ < 2) return;
    std::vector<Solution> starts = {best};
    starts.push_back(choices_.whole());
    starts[1].cost = network_.cost_of(starts[1].states);
    for (const Solution& start : starts) {
      for (int first = 0; first < axes_ && gap(best) > options_.good_gap; ++first) {
        Solution found = in_turns(start, first, keep);
        if (found.cost >= best.cost) continue;
        best.cost = found.cost;
        best.states = std::move(found.states);
      }
    }
  }

  /// Exactly along one axis at a time, until no axis helps.
  Solution in_turns(Solution now, int first, std::span<const std::vector<int>> keep) const {
    constexpr int kRounds = 8;
    for (int round = 0, idle = 0; round < kRounds && idle < axes_; ++round) {
      const States along = common(choices_.states_along(now, (first + round) % axes_), keep);
      const bool possible = std::ranges::none_of(along, &std::vector<int>::empty);
      ++idle;
      if (!possible) continue;
      Solution next = solve_within(network_, along, options_.limits);
      if (next.cost < now.cost * (1 - 1e-12)) {
        now = std::move(next);
        idle = 0;
      }
    }
    return now;
  }

  const ChoiceNetwork& choices_;
  const CostNetwork& network_;
  int axes_;
  const SearchOptions& options_;
};

constexpr double kSpread = 0.01;  // of prices from weight to weight
constexpr int kSteps = 16;        // that halve the range of prices

int axes_of(const ChoiceNetwork& choices) {
  return choices.inputs().empty() ? 1 : choices.inputs()[0].placements[0].mesh().ndim();
}

}  // namespace

Solution search_within(const ChoiceNetwork& choices, const CostNetwork& network,
                       std::span<const std::vector<int>> keep, const SearchOptions& options) {
  return Searcher(choices, network, axes_of(choices), options).run(keep);
}

Solution search(const ChoiceNetwork& choices, const SearchOptions& options) {
  return search_within(choices, choices.network(), choices.all_states(), options);
}

CostNetwork priced(const ChoiceNetwork& choices, double price, double spread) {
  CostNetwork out = choices.network();
  uint32_t random = 1;
  for (const auto& input : choices.inputs()) {
    if (!input.is_held) continue;
    random = random * 1664525U + 1013904223U;
    // At most the price itself, so that a solution's cost less price times limit is a bound.
    const double own = price * (1 - spread * (random >> 8) / static_cast<double>(1U << 24));
    for (size_t s = 0; s < input.placements.size(); ++s)
      out.add(input.variable, static_cast<int>(s), own * local_bytes(input.placements[s]));
  }
  return out;
}

double weight_bytes(const ChoiceNetwork& choices, const Solution& solution) {
  double sum = 0;
  for (const auto& input : choices.inputs()) {
    if (!input.is_held) continue;
    const auto state = solution.states[static_cast<size_t>(input.variable)];
    sum += local_bytes(input.placements[static_cast<size_t>(state)]);
  }
  return sum;
}

double fewest_weight_bytes(const ChoiceNetwork& choices) {
  double sum = 0;
  for (const auto& input : choices.inputs()) {
    if (!input.is_held) continue;
    double least = local_bytes(input.placements[0]);
    for (const auto& s : input.placements) least = std::min(least, local_bytes(s));
    sum += least;
  }
  return sum;
}

namespace {

/// The search for a price at which the limit is kept.
class PriceSearch {
 public:
  PriceSearch(const ChoiceNetwork& choices, double most, const SearchOptions& options)
      : choices_(choices), keep_(choices.all_states()), most_(most), options_(options) {
    best_.solution.cost = std::numeric_limits<double>::infinity();
  }

  Limited run(double bound) {
    bound_ = bound;
    while (high_ < 1 && !try_price(high_, kSpread)) {
      low_ = high_;
      high_ *= 16;
    }
    halve(low_, high_, kSpread, kSteps);
    // With one price for all the bound is better, if the choice is not.
    for (const double price : {low_, std::sqrt(low_ * high_), high_}) try_price(price, 0);
    // Other differences let other weights give way first.
    for (const double spread : {0.1, 0.3}) {
      if (best_.solution.cost - bound_ <= options_.good_gap * best_.solution.cost) break;
      double low = low_, high = high_ / (1 - spread);
      halve(low, high, spread, kSteps / 2);
    }
    best_.solution.exact = false;
    best_.solution.lower_bound = std::min(bound_, best_.solution.cost);
    return std::move(best_);
  }

 private:
  bool try_price(double price, double spread) {
    Solution found = search_within(choices_, priced(choices_, price, spread), keep_, options_);
    bound_ = std::max(bound_, found.lower_bound - price * most_);
    const bool fits = weight_bytes(choices_, found) <= most_;
    found.cost = choices_.network().cost_of(found.states);
    if (fits && found.cost < best_.solution.cost) best_ = {std::move(found), price};
    return fits;
  }

  void halve(double& low, double& high, double spread, int steps) {
    for (int i = 0; i < steps && std::isfinite(best_.solution.cost); ++i) {
      const double middle = std::sqrt(low * high);
      (try_price(middle, spread) ? high : low) = middle;
    }
  }

  const ChoiceNetwork& choices_;
  std::vector<std::vector<int>> keep_;
  double most_;
  const SearchOptions& options_;
  Limited best_;
  double bound_ = 0;
  double low_ = 1e-16, high_ = 1e-13;  // seconds a byte
};

}  // namespace

Limited search_under(const ChoiceNetwork& choices, int64_t limit, const SearchOptions& options) {
  const auto most = static_cast<double>(limit);
  Limited free{search(choices, options), 0};
  const bool possible = std::isfinite(free.solution.cost) && fewest_weight_bytes(choices) <= most;
  if (!possible) free.solution.cost = std::numeric_limits<double>::infinity();
  if (!possible || weight_bytes(choices, free.solution) <= most) return free;
  return PriceSearch(choices, most, options).run(free.solution.lower_bound);
}

}  // namespace tessera::partition
