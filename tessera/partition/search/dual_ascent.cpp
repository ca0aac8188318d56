#include "tessera/partition/search/dual_ascent.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "tessera/base/iota_vector.h"

namespace tessera::partition {
namespace {

/// What is not allowed costs this many times a known choice: enough to never be part of a better
/// one, little enough to keep digits.
constexpr double kTimes = 4;

std::vector<double> transposed(const std::vector<double>& rows, size_t count, size_t length) {
  std::vector<double> out(rows.size());
  for (size_t r = 0; r < count; ++r) {
    for (size_t c = 0; c < length; ++c) out[c * count + r] = rows[r * length + c];
  }
  return out;
}

}  // namespace

DualAscent::DualAscent(const CostNetwork& network, double above)
    : network_(&network), large_(kTimes * above) {
  set_unary(network);
  set_order();
  set_edges(large_);
  bound_ = -std::numeric_limits<double>::infinity();
}

void DualAscent::set_unary(const CostNetwork& network) {
  network_ = &network;
  unary_.clear();
  for (int v = 0; v < network.variables(); ++v) {
    unary_.push_back(network.unary(v));
    for (double& cost : unary_.back()) cost = std::min(cost, large_);
  }
  bound_ = -std::numeric_limits<double>::infinity();
  excess_.clear();
}

/// Variables of nodes come in the order of the program, others (weights, shared values) right after
/// the first that they share a table with: messages travel far in one round then.
void DualAscent::set_order() {
  const int n = network_->variables();
  auto key = iota_vector<double>(n);
  std::vector<int> least(at(n), n);
  for (const auto& pair : network_->pairs()) {
    least[at(pair.a)] = std::min(least[at(pair.a)], pair.b);
    least[at(pair.b)] = std::min(least[at(pair.b)], pair.a);
  }
  for (int v = 0; v < n; ++v) {
    if (least[at(v)] < v) key[at(v)] = std::max(key[at(least[at(v)])], least[at(v)] + 0.5);
  }
  order_ = iota_vector<int>(n);
  std::ranges::stable_sort(order_, {}, [&](int v) { return key[at(v)]; });
  place_.resize(at(n));
  for (int i = 0; i < n; ++i) place_[at(order_[at(i)])] = i;
}

void DualAscent::set_edges(double large) {
  std::map<std::pair<const void*, bool>, std::shared_ptr<const Costs>> known;
  before_.resize(at(network_->variables()));
  after_.resize(before_.size());
  for (const auto& pair : network_->pairs()) {
    const auto rows = at(network_->states(pair.a)), columns = at(network_->states(pair.b));
    auto& as_it_is = known[{pair.costs.get(), false}];
    if (!as_it_is) {
      Costs costs = *pair.costs;
      for (double& cost : costs) cost = std::min(cost, large);
      as_it_is = std::make_shared<const Costs>(std::move(costs));
    }
    auto& turned = known[{pair.costs.get(), true}];
    if (!turned) turned = std::make_shared<const Costs>(transposed(*as_it_is, rows, columns));
    const bool in_order = place_[at(pair.a)] < place_[at(pair.b)];
    Edge edge{in_order ? pair.a : pair.b,
              in_order ? pair.b : pair.a,
              in_order ? as_it_is : turned,
              in_order ? turned : as_it_is,
              {},
              {}};
    edge.to_first.assign(at(network_->states(edge.first)), 0.0);
    edge.to_second.assign(at(network_->states(edge.second)), 0.0);
    after_[at(edge.first)].push_back(static_cast<int>(edges_.size()));
    before_[at(edge.second)].push_back(static_cast<int>(edges_.size()));
    edges_.push_back(std::move(edge));
  }
  for (size_t v = 0; v < before_.size(); ++v) {
    const size_t chains = std::max({before_[v].size(), after_[v].size(), size_t{1}});
    share_.push_back(1.0 / static_cast<double>(chains));
  }
}

DualAscent::Costs DualAscent::sum_at(int v) const {
  Costs sum = unary_[at(v)];
  const auto add = [&](const Costs& message) {
    for (size_t s = 0; s < sum.size(); ++s) sum[s] += message[s];
  };
  for (const int e : before_[at(v)]) add(edges_[at(e)].to_second);
  for (const int e : after_[at(v)]) add(edges_[at(e)].to_first);
  return sum;
}

double DualAscent::send(const Costs& costs, const Costs& rows, Costs& out) {
  const size_t length = out.size();
  std::ranges::fill(out, std::numeric_limits<double>::infinity());
  double* const to = out.data();
  for (size_t s = 0; s < costs.size(); ++s) {
    const double add = costs[s];
    const double* const row = rows.data() + s * length;
    for (size_t t = 0; t < length; ++t) to[t] = std::min(to[t], add + row[t]);
  }
  const double least = *std::ranges::min_element(out);
  for (double& cost : out) cost -= least;
  return least;
}

void DualAscent::forward() {
  for (const int v : order_) {
    const Costs sum = sum_at(v);
    Costs part(sum.size());
    for (const int e : after_[at(v)]) {
      Edge& edge = edges_[at(e)];
      for (size_t s = 0; s < sum.size(); ++s) part[s] = share_[at(v)] * sum[s] - edge.to_first[s];
      send(part, *edge.by_first, edge.to_second);
    }
  }
}

void DualAscent::backward() {
  double bound = 0;
  std::vector<Costs> excess(unary_.size());
  for (size_t i = order_.size(); i-- > 0;) {
    const int v = order_[i];
    Costs sum = sum_at(v);
    const double least = *std::ranges::min_element(sum);
    bound += least;
    for (double& cost : sum) cost -= least;
    Costs part(sum.size());
    for (const int e : before_[at(v)]) {
      Edge& edge = edges_[at(e)];
      for (size_t s = 0; s < sum.size(); ++s) part[s] = share_[at(v)] * sum[s] - edge.to_second[s];
      bound += send(part, *edge.by_second, edge.to_first);
    }
    excess[at(v)] = std::move(sum);
  }
  // What a state costs above the others adds to the bound of the round before: messages from either
  // side were right when it was computed.
  if (std::isfinite(bound_)) {
    excess_ = std::move(excess);
    checked_ = bound_;
  }
  bound_ = std::max(bound_, bound);
}

void DualAscent::round() {
  forward();
  backward();
}

std::vector<std::vector<int>> DualAscent::states_below(double cost) const {
  std::vector<std::vector<int>> out(unary_.size());
  for (size_t v = 0; v < out.size(); ++v) {
    for (size_t s = 0; s < unary_[v].size(); ++s) {
      const double least = excess_.empty() ? 0 : checked_ + excess_[v][s];
      if (least < cost) out[v].push_back(static_cast<int>(s));
    }
  }
  return out;
}

std::vector<int> DualAscent::decode() const {
  std::vector<int> out(unary_.size(), 0);
  for (const int v : order_) {
    Costs sum = unary_[at(v)];
    for (const int e : after_[at(v)]) {
      for (size_t s = 0; s < sum.size(); ++s) sum[s] += edges_[at(e)].to_first[s];
    }
    for (const int e : before_[at(v)]) {
      const Edge& edge = edges_[at(e)];
      const double* row = edge.by_first->data() + at(out[at(edge.first)]) * sum.size();
      for (size_t s = 0; s < sum.size(); ++s) sum[s] += row[s];
    }
    out[at(v)] = static_cast<int>(std::ranges::min_element(sum) - sum.begin());
  }
  return out;
}

}  // namespace tessera::partition
