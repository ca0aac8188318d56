// The search finds what a plain Dijkstra over the table of moves finds. The Dijkstra works on
// Sharding values and shares nothing with the search but the definition of the moves in moves.h.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <queue>
#include <set>

#include "tessera/base/errors.h"
#include "tessera/plan/canonical.h"
#include "tessera/plan/search.h"
#include "tessera/sharding/local_shape.h"
#include "tests/support_pure/random_problems.h"

namespace tessera::plan {
namespace exact_test {

using test::for_each_seed;
using test::Rng;

class BruteForce {
 public:
  BruteForce(const Sharding& from, const Sharding& to, const cost::Machine& machine)
      : from_(from), to_(to), machine_(machine), links_(cost::links_of(from.mesh(), machine)) {}

  /// The least cost of a way that costs no more than `limit`; infinity if there is none.
  double solve(double limit) {
    limit_ = limit;
    reach(from_, 0);
    while (!open_.empty()) {
      const auto [cost, here] = open_.top();
      open_.pop();
      if (cost > best_.at(here.id())) continue;
      if (here == to_) return cost;
      cost_here_ = cost;
      add_single_moves(here);
      add_merged_moves(here);
      add_exchange(here);
    }
    return std::numeric_limits<double>::infinity();
  }

 private:
  struct Order {
    bool operator()(const std::pair<double, Sharding>& a,
                    const std::pair<double, Sharding>& b) const {
      return a.first > b.first;
    }
  };

  void reach(const Sharding& sharding, double cost) {
    if (cost > limit_) return;
    const auto [it, is_new] = best_.try_emplace(sharding.id(), cost);
    if (!is_new && it->second <= cost) return;
    it->second = cost;
    open_.emplace(cost, sharding);
    alive_.push_back(sharding);
  }

  int64_t bytes(const Sharding& sharding) {
    const auto known = bytes_.find(sharding.id());
    if (known != bytes_.end()) return known->second;
    int64_t most = 0;
    for (const auto& at : test::all_coordinates(sharding.mesh())) {
      most = std::max(most, local_numel(sharding, at));
    }
    alive_.push_back(sharding);
    return bytes_[sharding.id()] = most * dtype_bytes(sharding.dtype());
  }

  double price(Move move, const std::set<int>& group, const Sharding& from, const Sharding& to) {
    std::vector<cost::Link> links;
    int64_t n = 1;
    for (int axis : group) {
      links.push_back(links_[static_cast<size_t>(axis)]);
      n *= from.mesh().size(axis);
    }
    const auto link = cost::slowest(links);
    switch (move) {
      case Move::slice:
        return cost::copy_seconds(machine_, bytes(to));
      case Move::keep_one:
      case Move::rescale:
        return cost::copy_seconds(machine_, bytes(from));
      case Move::all_gather:
        return cost::all_gather_seconds(link, n, bytes(to));
      case Move::all_reduce:
        return cost::all_reduce_seconds(link, n, bytes(from));
      case Move::reduce_scatter:
        return cost::reduce_scatter_seconds(link, n, bytes(from));
      default:
        return cost::all_to_all_seconds(link, n, std::max(bytes(from), bytes(to)));
    }
  }

  void go(Move move, const std::set<int>& group, const Sharding& from, const Sharding& to) {
    reach(to, cost_here_ + price(move, group, from, to));
  }

  /// A ragged shard stands only where the axes before it are those that its table was made for.
  bool is_allowed(const Sharding& sharding) const {
    for (int axis = 0; axis < sharding.mesh().ndim(); ++axis) {
      if (sharding.placement(axis).kind() != Placement::Kind::ragged) continue;
      const int dim = sharding.placement(axis).dim();
      const auto stands_as_in = [&](const Sharding& end) {
        if (end.placement(axis) != sharding.placement(axis)) return false;
        const auto here = sharding.axes_of_dim(dim);
        const auto there = end.axes_of_dim(dim);
        for (size_t i = 0; i < here.size() && i < there.size(); ++i) {
          if (here[i] != there[i]) return false;
          if (here[i] == axis) return true;
          if (sharding.placement(here[i]) != end.placement(there[i])) return false;
        }
        return false;
      };
      if (!stands_as_in(from_) && !stands_as_in(to_)) return false;
    }
    return true;
  }

  /// `here` with another placement on one axis; none if there is no such sharding.
  std::optional<Sharding> with(const Sharding& here, int axis, const Placement& placement) const {
    try {
      Sharding to = here.with(axis, placement);
      if (!is_allowed(to)) return std::nullopt;
      return to;
    } catch (const InvalidArgument&) {
      return std::nullopt;
    }
  }

  std::vector<Placement> shards(int axis) const {
    std::vector<Placement> out;
    for (int dim = 0; dim < from_.ndim(); ++dim) out.push_back(Shard(dim));
    if (to_.placement(axis).is_sharded() && !to_.placement(axis).is_plain_shard()) {
      out.push_back(to_.placement(axis));
    }
    return out;
  }

  static bool is_innermost(const Sharding& here, int axis) {
    return here.axes_of_dim(here.placement(axis).dim()).back() == axis;
  }

  void add_single_moves(const Sharding& here) {
    for (int axis = 0; axis < here.mesh().ndim(); ++axis) {
      const Placement now = here.placement(axis);
      const Placement goal = to_.placement(axis);
      if (now.is_sharded()) {
        std::set<int> group;
        const auto nested = here.axes_of_dim(now.dim());
        group.insert(std::ranges::find(nested, axis), nested.end());
        for (const auto& shard : shards(axis)) {
          const auto to = with(here, axis, shard);
          if (to && *to != here) go(Move::all_to_all, group, here, *to);
        }
        continue;
      }
      if (now.is_replicate()) {
        for (const auto& shard : shards(axis)) {
          if (const auto to = with(here, axis, shard)) go(Move::slice, {}, here, *to);
        }
      }
      if (!goal.is_partial() || now == goal) continue;
      const auto linear = [](const Placement& p) {
        return p.reduce_op() == ReduceOp::sum || p.reduce_op() == ReduceOp::avg;
      };
      if (now.is_partial() && !(linear(now) && linear(goal))) continue;
      const auto to = with(here, axis, goal);
      if (to) go(now.is_partial() ? Move::rescale : Move::keep_one, {}, here, *to);
    }
  }

  /// Any moves of one kind, one after the other, as one.
  void add_merged_moves(const Sharding& here) {
    for (Move move : {Move::all_gather, Move::all_reduce, Move::reduce_scatter}) {
      std::set<const Sharding::Node*> seen;
      extend(move, here, here, {}, seen);
    }
  }

  void extend(Move move, const Sharding& here, const Sharding& at, const std::set<int>& group,
              std::set<const Sharding::Node*>& seen) {
    if (!seen.insert(at.id()).second) return;
    alive_.push_back(at);
    if (!group.empty()) go(move, group, here, at);
    for (int axis = 0; axis < here.mesh().ndim(); ++axis) {
      if (group.count(axis) > 0) continue;
      const Placement now = at.placement(axis);
      std::vector<Placement> next;
      if (move == Move::all_gather ? now.is_sharded() && is_innermost(at, axis)
                                   : now.is_partial()) {
        next = move == Move::reduce_scatter ? shards(axis) : std::vector{Replicate()};
      }
      for (const auto& placement : next) {
        auto larger = group;
        larger.insert(axis);
        if (const auto to = with(at, axis, placement)) extend(move, here, *to, larger, seen);
      }
    }
  }

  /// All axes that are to shard the tensor go to their places at once, those that are not come
  /// innermost.
  void add_exchange(const Sharding& here) {
    std::vector<Placement> placements(here.placements().begin(), here.placements().end());
    std::vector<int> order = to_.order();
    for (int axis = 0; axis < here.mesh().ndim(); ++axis) {
      if (!to_.placement(axis).is_sharded()) continue;
      if (!here.placement(axis).is_sharded()) return;
      placements[static_cast<size_t>(axis)] = to_.placement(axis);
    }
    for (int axis : here.order()) {
      if (!to_.placement(axis).is_sharded()) order.push_back(axis);
    }
    try {
      const auto to = here.with_placements(placements, order);
      if (to != here && is_allowed(to)) go(Move::all_to_all, talking(here, to), here, to);
    } catch (const InvalidArgument&) {
    }
  }

  /// Axes that shard the same pieces in both need not talk: those before the first difference.
  static std::set<int> talking(const Sharding& a, const Sharding& b) {
    std::set<int> group;
    for (int dim = 0; dim < a.ndim(); ++dim) {
      const auto in_a = a.axes_of_dim(dim);
      const auto in_b = b.axes_of_dim(dim);
      size_t same = 0;
      while (same < in_a.size() && same < in_b.size() && in_a[same] == in_b[same] &&
             a.placement(in_a[same]) == b.placement(in_b[same])) {
        ++same;
      }
      group.insert(in_a.begin() + static_cast<std::ptrdiff_t>(same), in_a.end());
      group.insert(in_b.begin() + static_cast<std::ptrdiff_t>(same), in_b.end());
    }
    return group;
  }

  Sharding from_;
  Sharding to_;
  cost::Machine machine_;
  std::vector<cost::Link> links_;
  double limit_ = 0;
  double cost_here_ = 0;
  std::map<const Sharding::Node*, double> best_;
  std::map<const Sharding::Node*, int64_t> bytes_;
  std::vector<Sharding> alive_;
  std::priority_queue<std::pair<double, Sharding>, std::vector<std::pair<double, Sharding>>, Order>
      open_;
};

void expect_exact(Rng& rng, int axes, int dims) {
  const auto p = test::dense_problem(rng, {.axes = axes, .dims = dims});
  const Sharding from = canonical(p.from);
  const Sharding to = canonical(p.to);
  SCOPED_TRACE(join_text(from, "  ->  ", to));
  const Problem problem(from, to, p.machine);
  SearchStats stats;
  const double found = path_seconds(problem, cheapest_path(problem, &stats));
  EXPECT_FALSE(stats.gave_up);
  const double least = BruteForce(from, to, p.machine).solve(found * (1 + 1e-9));
  EXPECT_NEAR(found, least, 1e-12 * least);
}

TEST(Search, IsExactOnSmallProblems) {
  for_each_seed(400,
                [](Rng& rng) { expect_exact(rng, rng.int_between(1, 3), rng.int_between(1, 3)); });
}

TEST(Search, IsExactOnFourAxesAndFiveDims) {
  for_each_seed(12, [](Rng& rng) { expect_exact(rng, 4, rng.int_between(3, 5)); });
}

}  // namespace exact_test
}  // namespace tessera::plan
