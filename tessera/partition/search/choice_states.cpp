#include <algorithm>

#include "tessera/partition/search/choice_network.h"

/// States of the network's variables: those to start a search from, and those to search among.
namespace tessera::partition {

Solution ChoiceNetwork::whole() const {
  Solution out;
  out.states.assign(static_cast<size_t>(network_.variables()), 0);
  const auto set = [&](int variable, size_t state) {
    out.states[static_cast<size_t>(variable)] = static_cast<int>(state);
  };
  for (size_t n = 0; n < view_.nodes(); ++n) {
    const auto& list = *rows_.of(n);
    const auto is_whole = [](const Sharding& s) { return !s.defined() || s.is_replicated(); };
    for (size_t s = 0; s < list.size(); ++s) {
      if (std::ranges::all_of(list[s].operands, is_whole) &&
          std::ranges::all_of(list[s].results, is_whole) && list[s].kernel.empty())
        set(node_variable_[n], s);
    }
  }
  for (const Input& input : inputs_) {
    for (size_t s = 0; s < input.placements.size(); ++s) {
      if (input.placements[s].is_replicated()) set(input.variable, s);
    }
  }
  for (const auto& [value, entry] : states_) {
    const auto& list = *entry.second;
    for (size_t s = 0; s < list.size(); ++s) {
      if (list[s].produced.is_replicated() && !list[s].copy.defined()) set(entry.first, s);
    }
  }
  out.cost = network_.cost_of(out.states);
  return out;
}

std::vector<std::vector<int>> ChoiceNetwork::all_states() const {
  std::vector<std::vector<int>> out(static_cast<size_t>(network_.variables()));
  for (size_t v = 0; v < out.size(); ++v) {
    for (int s = 0; s < network_.states(static_cast<int>(v)); ++s) out[v].push_back(s);
  }
  return out;
}

std::vector<std::vector<int>> ChoiceNetwork::states_along(const Solution& solution,
                                                          int axis) const {
  auto out = all_states();
  const auto keep_if = [&](int variable, const auto& is_like) {
    const auto v = static_cast<size_t>(variable);
    const auto now = static_cast<size_t>(solution.states[v]);
    std::erase_if(out[v], [&](int s) { return !is_like(static_cast<size_t>(s), now); });
  };
  const auto same = [&](const Sharding& a, const Sharding& b) {
    for (int other = 0; other < view_.mesh().ndim(); ++other) {
      if (other != axis && a.placement(other) != b.placement(other)) return false;
    }
    return true;
  };
  for (size_t n = 0; n < view_.nodes(); ++n) {
    const auto& list = *rows_.of(n);
    keep_if(node_variable_[n], [&](size_t s, size_t now) {
      for (size_t other = 0; other < list[s].picks.size(); ++other) {
        if (static_cast<int>(other) != axis && list[s].picks[other] != list[now].picks[other])
          return false;
      }
      return true;
    });
  }
  for (const Input& input : inputs_) {
    keep_if(input.variable,
            [&](size_t s, size_t now) { return same(input.placements[s], input.placements[now]); });
  }
  for (const auto& [value, entry] : states_) {
    const auto& list = *entry.second;
    keep_if(entry.first, [&](size_t s, size_t now) {
      if (!same(list[s].produced, list[now].produced)) return false;
      if (!list[s].copy.defined()) return true;
      return same(list[s].copy, list[now].produced) ||
             (list[now].copy.defined() && same(list[s].copy, list[now].copy));
    });
  }
  return out;
}

}  // namespace tessera::partition
