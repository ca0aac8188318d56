#include <algorithm>
#include <set>
#include <tuple>

#include "tessera/partition/search/cost_network.h"

namespace tessera::partition {
namespace {

/// The graph of variables that share a table, as variables are eliminated. Neighbours are sorted
/// lists: there are few of them.
class Neighbours {
 public:
  explicit Neighbours(const CostNetwork& network)
      : network_(network), of_(static_cast<size_t>(network.variables())) {
    for (const auto& pair : network.pairs()) connect(pair.a, pair.b);
  }

  const std::vector<int>& of(int v) const { return of_[static_cast<size_t>(v)]; }
  bool connected(int a, int b) const { return std::ranges::binary_search(of(a), b); }

  bool connect(int a, int b) {
    if (a == b || connected(a, b)) return false;
    insert(a, b);
    insert(b, a);
    return true;
  }

  void remove(int v) {
    for (const int n : of(v)) {
      auto& list = of_[static_cast<size_t>(n)];
      list.erase(std::ranges::lower_bound(list, v));
    }
    of_[static_cast<size_t>(v)].clear();
  }

  /// Weight of the connections that removing it would add, then entries of its table.
  std::tuple<double, double> score(int v) const {
    double fill = 0, table = network_.states(v);
    const auto& list = of(v);
    for (size_t i = 0; i < list.size(); ++i) {
      table *= network_.states(list[i]);
      for (size_t j = 0; j < i; ++j) {
        if (!connected(list[i], list[j]))
          fill += static_cast<double>(network_.states(list[i])) * network_.states(list[j]);
      }
    }
    return {fill, table};
  }

 private:
  void insert(int a, int b) {
    auto& list = of_[static_cast<size_t>(a)];
    list.insert(std::ranges::lower_bound(list, b), b);
  }

  const CostNetwork& network_;
  std::vector<std::vector<int>> of_;
};

using Key = std::tuple<double, double, int>;

}  // namespace

std::vector<int> elimination_order(const CostNetwork& network) {
  Neighbours neighbours(network);
  std::set<Key> queue;
  std::vector<Key> key_of;
  const auto key = [&](int v) {
    const auto [fill, table] = neighbours.score(v);
    return Key(fill, table, v);
  };
  for (int v = 0; v < network.variables(); ++v) {
    key_of.push_back(key(v));
    queue.insert(key_of.back());
  }
  std::vector<int> order;
  std::vector<int> changed;
  while (!queue.empty()) {
    const int v = std::get<2>(*queue.begin());
    queue.erase(queue.begin());
    order.push_back(v);
    const std::vector<int> around = neighbours.of(v);
    neighbours.remove(v);
    changed = around;
    for (size_t i = 0; i < around.size(); ++i) {
      for (size_t j = 0; j < i; ++j) {
        if (!neighbours.connect(around[i], around[j])) continue;
        std::ranges::set_intersection(neighbours.of(around[i]), neighbours.of(around[j]),
                                      std::back_inserter(changed));
      }
    }
    std::ranges::sort(changed);
    changed.erase(std::ranges::unique(changed).begin(), changed.end());
    for (const int n : changed) {
      const Key now = key(n);
      if (now == key_of[static_cast<size_t>(n)]) continue;
      queue.erase(key_of[static_cast<size_t>(n)]);
      queue.insert(now);
      key_of[static_cast<size_t>(n)] = now;
    }
  }
  return order;
}

}  // namespace tessera::partition
