#include "tessera/partition/search/limited_solve.h"

#include <algorithm>
#include <limits>

namespace tessera::partition {
namespace {

constexpr double kNotAllowed = std::numeric_limits<double>::infinity();

/// A choice for the variables of a subtree.
struct Entry {
  double cost, bytes;
  int state;                  // of the variable that was eliminated last
  std::vector<size_t> picks;  // by child, its entry; only where a result is traced back
};
using Front = std::vector<Entry>;

/// Leaves out every entry for which another is as good or better in both.
void keep_best(Front& front) {
  std::ranges::stable_sort(front, [](const Entry& a, const Entry& b) {
    return a.bytes != b.bytes ? a.bytes < b.bytes : a.cost < b.cost;
  });
  size_t kept = 0;
  for (size_t i = 0; i < front.size(); ++i) {
    if (kept > 0 && front[i].cost >= front[kept - 1].cost) continue;
    if (kept != i) front[kept] = std::move(front[i]);
    ++kept;
  }
  front.resize(kept);
}

/// A variable with those that are connected to it when it is eliminated; the last one is the root,
/// without a variable. A child's message is a table over variables of the parent's cluster, which
/// is `around` and the variable itself.
struct Bucket {
  int variable = -1;
  std::vector<int> around;
  std::vector<size_t> pairs;
  std::vector<size_t> children;
  std::vector<double> up;     // by cell of `around`: the least priced sum of the subtree
  std::vector<double> down;   // and of all else
  std::vector<Front> fronts;  // by cell: the choices of the subtree
  double fewest = 0;          // bytes of the subtree at least
};

class LimitedElimination {
 public:
  LimitedElimination(const CostNetwork& network, const ByteLimit& limit,
                     const LimitedOptions& options)
      : network_(network),
        limit_(limit),
        options_(options),
        ceiling_(options.below + options.price * limit.most),
        chosen_(at(network.variables()), 0) {}

  std::optional<Solution> run() {
    if (!make_buckets()) return std::nullopt;
    pass_up();
    Solution out;
    out.cost = out.lower_bound = kNotAllowed;
    out.cells = work_;
    if (!(buckets_.back().up[0] < ceiling_)) return out;
    pass_down();
    if (!pass_fronts()) return std::nullopt;
    out.cells = work_;
    const Front& found = buckets_.back().fronts[0];
    if (found.empty() || !(found.back().cost < options_.below)) return out;
    options_.work = kNotAllowed;  // what is traced back was allowed before
    trace();
    out.states = chosen_;
    out.cost = out.lower_bound = network_.cost_of(out.states);
    return out;
  }

 private:
  size_t states(int v) const { return at(network_.states(v)); }
  bool within_work(double more) {
    work_ += more;
    return work_ <= options_.work;
  }

  bool make_buckets() {
    const std::vector<int> order = elimination_order(network_);
    std::vector<size_t> bucket_of(order.size());
    for (size_t b = 0; b < order.size(); ++b) bucket_of[at(order[b])] = b;
    buckets_.resize(order.size() + 1);
    for (size_t p = 0; p < network_.pairs().size(); ++p) {
      const auto& pair = network_.pairs()[p];
      const size_t first = std::min(bucket_of[at(pair.a)], bucket_of[at(pair.b)]);
      buckets_[first].pairs.push_back(p);
      add_neighbour(buckets_[first], pair.a == order[first] ? pair.b : pair.a);
    }
    for (size_t b = 0; b < order.size(); ++b) {
      Bucket& bucket = buckets_[b];
      bucket.variable = order[b];
      bucket.fewest += *std::ranges::min_element(limit_.bytes[at(order[b])]);
      size_t parent = order.size();
      double cells = static_cast<double>(states(order[b]));
      for (const int v : bucket.around) {
        parent = std::min(parent, bucket_of[at(v)]);
        cells *= static_cast<double>(states(v));
      }
      if (!within_work(3 * cells)) return false;  // for three passes
      buckets_[parent].children.push_back(b);
      buckets_[parent].fewest += bucket.fewest;
      for (const int v : bucket.around) {
        if (parent < order.size() && v != order[parent]) add_neighbour(buckets_[parent], v);
      }
    }
    return true;
  }

  static void add_neighbour(Bucket& bucket, int v) {
    if (std::ranges::find(bucket.around, v) == bucket.around.end()) bucket.around.push_back(v);
  }

  /// Calls visit() with chosen_ set to every combination of the states of a bucket's cluster.
  template <typename Visit>
  void for_each_cell(const Bucket& bucket, Visit visit) {
    std::vector<int> cluster = bucket.around;
    if (bucket.variable >= 0) cluster.push_back(bucket.variable);
    for (const int v : cluster) chosen_[at(v)] = 0;
    while (true) {
      visit();
      size_t i = cluster.size();
      while (i > 0 && ++chosen_[at(cluster[i - 1])] == network_.states(cluster[i - 1]))
        chosen_[at(cluster[--i])] = 0;
      if (i == 0) return;
    }
  }

  size_t cells_around(const Bucket& bucket) const {
    size_t out = 1;
    for (const int v : bucket.around) out *= states(v);
    return out;
  }

  /// Of the chosen states, in the tables of a bucket.
  size_t cell_of(const Bucket& bucket) const {
    size_t out = 0;
    for (const int v : bucket.around) out = out * states(v) + at(chosen_[at(v)]);
    return out;
  }

  /// What a bucket itself adds with the chosen states.
  Entry own(const Bucket& bucket) const {
    Entry out{0, 0, 0, {}};
    if (bucket.variable >= 0) {
      out.state = chosen_[at(bucket.variable)];
      out.cost = network_.unary(bucket.variable)[at(out.state)];
      out.bytes = limit_.bytes[at(bucket.variable)][at(out.state)];
    }
    for (const size_t p : bucket.pairs) {
      const auto& pair = network_.pairs()[p];
      out.cost += (*pair.costs)[at(chosen_[at(pair.a)]) * states(pair.b) + at(chosen_[at(pair.b)])];
    }
    return out;
  }
  double priced(const Entry& entry) const { return entry.cost + options_.price * entry.bytes; }

  /// The least priced sum of the subtree with the chosen states.
  double least_below(const Bucket& bucket) const {
    double sum = priced(own(bucket));
    for (const size_t c : bucket.children) sum += buckets_[c].up[cell_of(buckets_[c])];
    return sum;
  }

  void pass_up() {
    for (Bucket& bucket : buckets_) {
      bucket.up.assign(cells_around(bucket), kNotAllowed);
      for_each_cell(bucket, [&] {
        double& least = bucket.up[cell_of(bucket)];
        least = std::min(least, least_below(bucket));
      });
    }
  }

  void pass_down() {
    for (Bucket& bucket : buckets_) bucket.down.assign(bucket.up.size(), kNotAllowed);
    buckets_.back().down[0] = 0;
    for (size_t b = buckets_.size(); b-- > 0;) {
      const Bucket& bucket = buckets_[b];
      if (bucket.children.empty()) continue;
      for_each_cell(bucket, [&] {
        const double all = least_below(bucket) + bucket.down[cell_of(bucket)];
        if (all == kNotAllowed) return;
        for (const size_t c : bucket.children) {
          const size_t cell = cell_of(buckets_[c]);
          double& least = buckets_[c].down[cell];
          least = std::min(least, all - buckets_[c].up[cell]);
        }
      });
    }
  }

  bool pass_fronts() {
    for (Bucket& bucket : buckets_) {
      bucket.fronts.resize(bucket.up.size());
      for_each_cell(bucket, [&] {
        Front& front = bucket.fronts[cell_of(bucket)];
        std::ranges::move(choices(bucket, false), std::back_inserter(front));
      });
      if (work_ > options_.work) return false;
      for (Front& front : bucket.fronts) keep_best(front);
    }
    return true;
  }

  /// The choices of the subtree with the chosen states that can be part of a result.
  Front choices(const Bucket& bucket, bool trace) {
    const double outside = buckets_.back().fewest - bucket.fewest;
    const double all = least_below(bucket) + bucket.down[cell_of(bucket)];
    if (!(all < ceiling_)) return {};
    Front front = {own(bucket)};
    double rest = all - priced(front[0]);  // of all that the entries do not contain yet
    for (const size_t c : bucket.children) {
      const size_t cell = cell_of(buckets_[c]);
      const Front& child = buckets_[c].fronts[cell];
      rest -= buckets_[c].up[cell];
      if (!within_work(static_cast<double>(front.size() * child.size()))) return {};
      front = sums(front, child, rest, limit_.most - outside, trace);
    }
    return front;
  }

  Front sums(const Front& front, const Front& child, double rest, double most, bool trace) const {
    Front out;
    for (const Entry& entry : front) {
      for (size_t i = 0; i < child.size(); ++i) {
        Entry sum{entry.cost + child[i].cost, entry.bytes + child[i].bytes, entry.state, {}};
        if (sum.bytes > most || !(priced(sum) + rest < ceiling_)) continue;
        if (trace) {
          sum.picks = entry.picks;
          sum.picks.push_back(i);
        }
        out.push_back(std::move(sum));
      }
    }
    keep_best(out);
    return out;
  }

  /// Chooses the states that the cheapest entry of the root consists of. A bucket's turn comes when
  /// those around it are chosen.
  void trace() {
    std::vector<std::pair<size_t, Entry>> left = {
        {buckets_.size() - 1, buckets_.back().fronts[0].back()}};
    while (!left.empty()) {
      const auto [b, wanted] = std::move(left.back());
      left.pop_back();
      const Bucket& bucket = buckets_[b];
      if (bucket.variable >= 0) chosen_[at(bucket.variable)] = wanted.state;
      const Front front = choices(bucket, true);
      const auto found = std::ranges::find_if(
          front, [&](const Entry& e) { return e.cost == wanted.cost && e.bytes == wanted.bytes; });
      for (size_t c = 0; c < bucket.children.size(); ++c) {
        const Bucket& child = buckets_[bucket.children[c]];
        left.emplace_back(bucket.children[c], child.fronts[cell_of(child)][found->picks[c]]);
      }
    }
  }

  const CostNetwork& network_;
  const ByteLimit& limit_;
  LimitedOptions options_;
  double ceiling_;  // of priced sums
  std::vector<int> chosen_;
  std::vector<Bucket> buckets_;
  double work_ = 0;
};

}  // namespace

ByteLimit ByteLimit::restricted(std::span<const std::vector<int>> keep) const {
  ByteLimit out{{}, most};
  for (size_t v = 0; v < keep.size(); ++v) {
    out.bytes.emplace_back();
    for (const int s : keep[v]) out.bytes.back().push_back(bytes[v][at(s)]);
  }
  return out;
}

std::optional<Solution> solve_limited(const CostNetwork& network, const ByteLimit& limit,
                                      const LimitedOptions& options) {
  return LimitedElimination(network, limit, options).run();
}

}  // namespace tessera::partition
