#include "tessera/partition/search/search.h"

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

/// The network in which all other states are not allowed.
CostNetwork limited_to(const CostNetwork& network, std::span<const std::vector<int>> keep) {
  CostNetwork out = network;
  for (size_t v = 0; v < keep.size(); ++v) {
    const int states = network.states(static_cast<int>(v));
    if (std::ssize(keep[v]) == states) continue;
    for (int s = 0; s < states; ++s) {
      if (std::ranges::find(keep[v], s) == keep[v].end())
        out.add(static_cast<int>(v), s, std::numeric_limits<double>::infinity());
    }
  }
  return out;
}

int axes_of(const ChoiceNetwork& choices) {
  return choices.inputs().empty() ? 1 : choices.inputs()[0].placements[0].mesh().ndim();
}

size_t count_of(const States& states) {
  size_t sum = 0;
  for (const auto& list : states) sum += list.size();
  return sum;
}

}  // namespace

PlanSearch::PlanSearch(const ChoiceNetwork& choices, const SearchOptions& options)
    : choices_(choices), options_(options), axes_(axes_of(choices)) {}
PlanSearch::~PlanSearch() = default;

Solution PlanSearch::run(const CostNetwork& network, std::span<const std::vector<int>> keep) {
  if (axes_ > 1) return by_ascent(network, keep);
  return solve_within(network, keep, options_.limits);
}

/// The best choice that is known before the search; infinite cost if there is none.
Solution PlanSearch::start(const CostNetwork& network, std::span<const std::vector<int>> keep) {
  Solution best = choices_.whole();
  best.cost = network.cost_of(best.states);
  if (!last_.empty() && network.cost_of(last_) < best.cost) {
    best.states = last_;
    best.cost = network.cost_of(last_);
  }
  if (!std::isfinite(best.cost)) best = solve_within(network, keep, options_.small);
  if (!std::isfinite(best.cost) && !best.exact) best = solve_within(network, keep, options_.limits);
  best.exact = false;
  best.lower_bound = 0;
  return best;
}

Solution PlanSearch::by_ascent(const CostNetwork& all, std::span<const std::vector<int>> keep) {
  const CostNetwork network = limited_to(all, keep);
  Solution best = start(network, keep);
  if (!std::isfinite(best.cost)) return best;
  if (ascent_ != nullptr && 2 * best.cost <= ascent_->large()) {
    ascent_->set_unary(network);
  } else {
    ascent_ = std::make_unique<DualAscent>(network, best.cost);
  }
  constexpr int kBetweenTries = 4;
  for (int round = 1; round <= options_.rounds && !best.exact; ++round) {
    ascent_->round();
    std::vector<int> states = ascent_->decode();
    if (const double cost = network.cost_of(states); cost < best.cost) {
      best.cost = cost;
      best.states = std::move(states);
    }
    best.lower_bound = std::max(best.lower_bound, std::min(ascent_->bound(), best.cost));
    if (round % kBetweenTries == 0) best.exact = try_exact(network, best);
  }
  if (!best.exact && gap(best) > options_.good_gap) improve(network, keep, best);
  last_ = best.states;
  return best;
}

/// Eliminates what is left of the states, if that is a small part of all.
bool PlanSearch::try_exact(const CostNetwork& network, Solution& best) const {
  constexpr double kLittle = 1e-9;  // so that the choice itself is left
  const States left = ascent_->states_below(best.cost * (1 + kLittle));
  const bool possible = std::ranges::none_of(left, &std::vector<int>::empty);
  if (!possible || 2 * count_of(left) > count_of(choices_.all_states())) return false;
  Solution found = solve_within(network, left, options_.small);
  if (!found.exact) return false;
  if (found.cost < best.cost) {
    best.cost = found.cost;
    best.states = std::move(found.states);
  }
  best.lower_bound = best.cost;
  return true;
}

/// From the choice itself and from everything whole, beginning with either axis.
void PlanSearch::improve(const CostNetwork& network, std::span<const std::vector<int>> keep,
                         Solution& best) const {
  std::vector<Solution> starts = {best, choices_.whole()};
  starts[1].cost = network.cost_of(starts[1].states);
  for (const Solution& from : starts) {
    for (int first = 0; first < axes_ && gap(best) > options_.good_gap; ++first) {
      Solution found = in_turns(network, from, first, keep);
      if (found.cost >= best.cost) continue;
      best.cost = found.cost;
      best.states = std::move(found.states);
    }
  }
}

/// Exactly along one axis at a time, until no axis helps.
Solution PlanSearch::in_turns(const CostNetwork& network, Solution now, int first,
                              std::span<const std::vector<int>> keep) const {
  constexpr int kRounds = 8;
  for (int round = 0, idle = 0; round < kRounds && idle < axes_; ++round) {
    const States along = common(choices_.states_along(now, (first + round) % axes_), keep);
    const bool possible = std::ranges::none_of(along, &std::vector<int>::empty);
    ++idle;
    if (!possible) continue;
    Solution next = solve_within(network, along, options_.limits);
    if (next.cost < now.cost * (1 - 1e-12)) {
      now = std::move(next);
      idle = 0;
    }
  }
  return now;
}

Solution search(const ChoiceNetwork& choices, const SearchOptions& options) {
  return PlanSearch(choices, options).run(choices.network(), choices.all_states());
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
    Solution found = search_.run(priced(choices_, price, 0), choices_.all_states());
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
  PlanSearch& search_;
  Limited best_;
  double bound_ = 0;
  double price_ = 0;  // at which the bound is highest, so far
  Point heavy_{};     // of a choice that does not fit
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
