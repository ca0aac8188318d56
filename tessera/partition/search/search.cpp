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

/// Messages of the search before are kept unless its "not allowed" is too little for this cost.
void PlanSearch::prepare_ascent(const CostNetwork& network, double cost) {
  if (ascent_ != nullptr && 2 * cost <= ascent_->large()) {
    ascent_->set_unary(network);
  } else {
    ascent_ = std::make_unique<DualAscent>(network, cost);
  }
}

Solution PlanSearch::by_ascent(const CostNetwork& all, std::span<const std::vector<int>> keep) {
  const CostNetwork network = limited_to(all, keep);
  Solution best = start(network, keep);
  if (!std::isfinite(best.cost)) return best;
  prepare_ascent(network, best.cost);
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

States PlanSearch::states_below(const CostNetwork& network, double cost) {
  prepare_ascent(network, cost);
  constexpr int kRounds = 16;
  for (int round = 0; round < kRounds; ++round) ascent_->round();
  return ascent_->states_below(cost);
}

Solution search(const ChoiceNetwork& choices, const SearchOptions& options) {
  return PlanSearch(choices, options).run(choices.network(), choices.all_states());
}

}  // namespace tessera::partition
