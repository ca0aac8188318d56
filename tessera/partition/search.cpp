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

/// The search for a price on bytes at which the limit is kept, in two parts.
///
/// The bound: with one price for all, layers that are alike are worked out once. The cost less
/// price times limit is a lower bound, concave in the price; the next price is where the lines of a
/// choice that fits and of one that does not meet, until neither is beaten there.
///
/// The choice: at that price both are optimal and differ in all layers at once. Between them are
/// choices with some layers of the one and some of the other. They are found among the states of
/// all choices seen so far, few of each variable, with prices that differ from weight to weight.
class PriceSearch {
 public:
  PriceSearch(const ChoiceNetwork& choices, double most, const SearchOptions& options)
      : choices_(choices), most_(most), options_(options), seen_(choices.all_states().size()) {
    best_.solution.cost = std::numeric_limits<double>::infinity();
  }

  Limited run(const Solution& free) {
    bound_ = free.lower_bound;
    heavy_ = point_of(free);
    remember(free);
    raise_bound();
    for (const double spread : {0.01, 0.1, 0.3}) {
      if (is_good() || !std::isfinite(best_.solution.cost)) break;
      mix(spread);
    }
    best_.solution.exact = false;
    best_.solution.lower_bound = std::min(bound_, best_.solution.cost);
    return std::move(best_);
  }

 private:
  struct Point {
    double cost, bytes;
  };
  Point point_of(const Solution& solution) const {
    return {choices_.network().cost_of(solution.states), weight_bytes(choices_, solution)};
  }
  bool is_good() const {
    return best_.solution.cost - bound_ <= options_.good_gap * best_.solution.cost;
  }

  void remember(const Solution& solution) {
    for (size_t v = 0; v < seen_.size(); ++v) {
      const int state = solution.states[v];
      if (std::ranges::find(seen_[v], state) == seen_[v].end()) seen_[v].push_back(state);
    }
  }

  /// Whether it fits; the best that does is kept.
  bool consider(Solution found, double price) {
    const Point point = point_of(found);
    if (point.bytes > most_) return false;
    found.cost = point.cost;
    if (found.cost < best_.solution.cost) best_ = {std::move(found), price};
    return true;
  }

  Point solve_at(double price) {
    Solution found =
        search_within(choices_, priced(choices_, price, 0), choices_.all_states(), options_);
    bound_ = std::max(bound_, found.lower_bound - price * most_);
    remember(found);
    const Point point = point_of(found);
    consider(std::move(found), price);
    return point;
  }

  void raise_bound() {
    constexpr double kFirst = 1e-13, kLast = 1;  // seconds a byte
    Point light = heavy_;
    for (double price = kFirst; light.bytes > most_; price *= 256) {
      if (price > kLast) return;
      light = solve_at(price);
      if (light.bytes > most_) heavy_ = light;
      price_ = price;
    }
    for (int step = 0; step < kSteps && !is_good(); ++step) {
      const double price = (light.cost - heavy_.cost) / (heavy_.bytes - light.bytes);
      if (!(price > 0)) return;
      const double meet = heavy_.cost + price * heavy_.bytes;
      price_ = price;
      const Point found = solve_at(price);
      if (found.cost + price * found.bytes >= meet * (1 - 1e-9)) return;
      (found.bytes > most_ ? heavy_ : light) = found;
    }
  }

  void mix(double spread) {
    double low = price_ / 2, high = price_ * 2 / (1 - spread);
    for (int step = 0; step < kSteps; ++step) {
      const double middle = std::sqrt(low * high);
      Solution found = solve_within(priced(choices_, middle, spread), seen_, options_.limits);
      (consider(std::move(found), middle) ? high : low) = middle;
    }
  }

  static constexpr int kSteps = 16;

  const ChoiceNetwork& choices_;
  double most_;
  const SearchOptions& options_;
  Limited best_;
  double bound_ = 0;
  double price_ = 0;  // at which the bound is highest, so far
  Point heavy_{};     // of a choice that does not fit
  States seen_;
};

}  // namespace

Limited search_under(const ChoiceNetwork& choices, int64_t limit, const SearchOptions& options) {
  const auto most = static_cast<double>(limit);
  Limited free{search(choices, options), 0};
  const bool possible = std::isfinite(free.solution.cost) && fewest_weight_bytes(choices) <= most;
  if (!possible) free.solution.cost = std::numeric_limits<double>::infinity();
  if (!possible || weight_bytes(choices, free.solution) <= most) return free;
  return PriceSearch(choices, most, options).run(free.solution);
}

}  // namespace tessera::partition
