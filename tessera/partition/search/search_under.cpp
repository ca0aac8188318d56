#include <algorithm>
#include <cmath>

#include "tessera/partition/search/limited_solve.h"
#include "tessera/partition/search/search.h"

namespace tessera::partition {

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

using States = std::vector<std::vector<int>>;

ByteLimit byte_limit(const ChoiceNetwork& choices, double most) {
  ByteLimit out{{}, most};
  for (int v = 0; v < choices.network().variables(); ++v)
    out.bytes.emplace_back(static_cast<size_t>(choices.network().states(v)), 0.0);
  for (const auto& input : choices.inputs()) {
    if (!input.is_held) continue;
    auto& bytes = out.bytes[static_cast<size_t>(input.variable)];
    for (size_t s = 0; s < bytes.size(); ++s) bytes[s] += local_bytes(input.placements[s]);
  }
  return out;
}

/// The search for a price on bytes at which the limit is kept, in three parts.
///
/// The bound: with one price for all, layers that are alike are worked out once. The cost less
/// price times limit is a lower bound, concave in the price; the next price is where the lines of a
/// choice that fits and of one that does not meet, until neither is beaten there.
///
/// The choice: at that price both are optimal and differ in all layers at once. Between them are
/// choices with some layers of the one and some of the other. They are found among the states of
/// all choices seen so far, few of each variable, with prices that differ from weight to weight.
///
/// What is cheaper than the choice and not excluded by the bound is searched exactly.
class PriceSearch {
 public:
  PriceSearch(const ChoiceNetwork& choices, double most, const SearchOptions& options,
              PlanSearch& search)
      : choices_(choices),
        most_(most),
        options_(options),
        search_(search),
        seen_(choices.all_states().size()) {
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
    best_.solution.lower_bound = std::min(bound_, best_.solution.cost);
    best_.solution.exact = std::isfinite(best_.solution.cost) && close_gap();
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
    Solution found = search_.run(priced(choices_, price, 0), choices_.all_states());
    if (const double bound = found.lower_bound - price * most_; bound > bound_) {
      bound_ = bound;
      bound_price_ = price;
    }
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

  /// A weight changes its placement where its own price is that of the bound, so only prices around
  /// it are tried.
  void mix(double spread) {
    constexpr double kMargin = 0.002;
    double low = price_ * (1 - kMargin), high = price_ * (1 + kMargin) / (1 - spread);
    for (int step = 0; step < kMixSteps; ++step) {
      const double middle = std::sqrt(low * high);
      Solution found = solve_within(priced(choices_, middle, spread), seen_, options_.limits);
      (consider(std::move(found), middle) ? high : low) = middle;
    }
  }

  /// Looks for the cheapest choice among those that the bound leaves room for, which are few if the
  /// gap is small. False: there are too many of them.
  bool close_gap() {
    Solution& best = best_.solution;
    const double ceiling = best.cost + bound_price_ * most_;
    const States left = search_.states_below(priced(choices_, bound_price_, 0), ceiling);
    if (std::ranges::none_of(left, &std::vector<int>::empty)) {
      const auto found = solve_limited(choices_.network().restricted(left),
                                       byte_limit(choices_, most_).restricted(left),
                                       {.price = bound_price_, .below = best.cost});
      if (!found) return false;
      if (found->cost < best.cost) {
        best.cost = found->cost;
        for (size_t v = 0; v < left.size(); ++v)
          best.states[v] = left[v][static_cast<size_t>(found->states[v])];
      }
    }
    best.lower_bound = best.cost;
    return true;
  }

  static constexpr int kSteps = 16, kMixSteps = 8;

  const ChoiceNetwork& choices_;
  double most_;
  const SearchOptions& options_;
  PlanSearch& search_;
  Limited best_;
  double bound_ = 0;
  double bound_price_ = 0;  // at which it was found
  double price_ = 0;        // the last one
  Point heavy_{};           // of a choice that does not fit
  States seen_;
};

}  // namespace

Limited search_under(const ChoiceNetwork& choices, int64_t limit, const SearchOptions& options) {
  const auto most = static_cast<double>(limit);
  PlanSearch search(choices, options);
  Limited free{search.run(choices.network(), choices.all_states()), 0};
  const bool possible = std::isfinite(free.solution.cost) && fewest_weight_bytes(choices) <= most;
  if (!possible) free.solution.cost = std::numeric_limits<double>::infinity();
  if (!possible || weight_bytes(choices, free.solution) <= most) return free;
  return PriceSearch(choices, most, options, search).run(free.solution);
}

}  // namespace tessera::partition
