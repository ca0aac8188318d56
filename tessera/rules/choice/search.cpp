#include "tessera/rules/choice/search.h"

#include <algorithm>
#include <limits>
#include <queue>
#include <set>

#include "tessera/base/errors.h"
#include "tessera/plan/plan.h"

namespace tessera::rules {
namespace {

constexpr double kInfinite = std::numeric_limits<double>::infinity();

/// Combinations of one row per axis, by estimated cost, then work, then memory.
class BestFirst {
 public:
  explicit BestFirst(const Candidates& from) : from_(from) {
    push(Picks(static_cast<size_t>(from.axes()), 0));
  }

  struct Item {
    double seconds, work, memory;
    Picks picks;
    auto key() const { return std::tie(seconds, work, memory, picks); }
    bool operator>(const Item& other) const { return key() > other.key(); }
  };

  bool empty() const { return open_.empty(); }
  Item pop() {
    Item best = open_.top();
    open_.pop();
    // Each combination has one parent: the one with its last nonzero pick decremented.
    size_t last = best.picks.size();
    while (last > 0 && best.picks[last - 1] == 0) --last;
    for (size_t axis = last > 0 ? last - 1 : 0; axis < best.picks.size(); ++axis) {
      const auto& rows = from_.of_axis(static_cast<int>(axis));
      if (best.picks[axis] + 1 >= static_cast<int>(rows.size())) continue;
      Picks next = best.picks;
      ++next[axis];
      push(std::move(next));
    }
    return best;
  }

 private:
  void push(Picks picks) {
    Item item{0, 1, 0, std::move(picks)};
    for (int axis = 0; axis < from_.axes(); ++axis) {
      const Candidate& c = from_.at(item.picks, axis);
      item.seconds += c.seconds;
      item.work *= c.work;
      item.memory += c.memory;
    }
    open_.push(std::move(item));
  }

  const Candidates& from_;
  std::priority_queue<Item, std::vector<Item>, std::greater<>> open_;
};

/// The possible nesting orders of axes: those of the operands, and the default.
std::vector<std::vector<int>> orders_of(const std::vector<Sharding>& operands, int axes) {
  std::vector<std::vector<int>> out;
  for (const auto& s : operands) {
    if (!s.defined() || s.has_default_order()) continue;
    auto order = s.order();
    for (int axis = 0; axis < axes; ++axis) {
      if (std::ranges::find(order, axis) == order.end()) order.push_back(axis);
    }
    if (std::ranges::find(out, order) == out.end()) out.push_back(std::move(order));
  }
  out.emplace_back();
  return out;
}

/// Converts rows to shardings and prices them; infinite if they cannot be reached.
class Pricer {
 public:
  Pricer(const Rule& rule, const std::vector<Sharding>& operands)
      : rule_(rule), operands_(operands) {}

  template <typename PlacementAt>
  Choice price(int axes, size_t results, const PlacementAt& at, std::vector<int> order) const {
    Choice choice;
    choice.order = std::move(order);
    try {
      for (size_t o = 0; o < operands_.size(); ++o) add_operand(choice, o, axes, at);
    } catch (const Error&) {  // ragged tables that do not match, impossible moves
      choice.seconds = kInfinite;
      return choice;
    }
    for (size_t r = 0; r < results; ++r) {
      auto& placements = choice.results.emplace_back();
      for (int axis = 0; axis < axes; ++axis) placements.push_back(at(axis, o_result(r)));
    }
    return choice;
  }

  /// Results are numbered after the operands.
  size_t o_result(size_t result) const { return operands_.size() + result; }

 private:
  template <typename PlacementAt>
  void add_operand(Choice& choice, size_t o, int axes, const PlacementAt& at) const {
    const Sharding& now = operands_[o];
    if (!now.defined()) {
      choice.operands.emplace_back();
      return;
    }
    bool same = true;
    for (int axis = 0; axis < axes; ++axis) same &= at(axis, o) == now.placement(axis);
    if (same && choice.order.empty() && now.has_default_order()) {
      choice.operands.push_back(now);
      return;
    }
    std::vector<Placement> placements;
    placements.reserve(static_cast<size_t>(axes));
    for (int axis = 0; axis < axes; ++axis) placements.push_back(at(axis, o));
    Sharding to = now.with_placements(std::move(placements), choice.order);
    if (to != now) {
      const bool out = o + static_cast<size_t>(rule_.out_count) >= operands_.size();
      const auto plan = out ? plan::cached_plan(to, now) : plan::cached_plan(now, to);
      choice.seconds += plan->seconds();
      choice.bytes += plan->bytes();
      if (o == 0 && rule_.in_place) choice.seconds += 1e6;  // see candidates.cpp
    }
    choice.operands.push_back(std::move(to));
  }

  const Rule& rule_;
  const std::vector<Sharding>& operands_;
};

bool nests(const Candidates& candidates, const Picks& picks) {
  if (candidates.axes() == 1) return false;
  for (size_t o = 0; o < candidates.operands().size(); ++o) {
    std::set<int> dims;
    for (int axis = 0; axis < candidates.axes(); ++axis) {
      const Placement& p = candidates.at(picks, axis).row.operands[o];
      if (p.is_sharded() && !dims.insert(p.dim()).second) return true;
    }
  }
  return false;
}

/// The kernel that the rows name, one for all axes, and what it sends.
void add_kernel(const Candidates& candidates, const Picks& picks, Choice& choice) {
  for (int axis = 0; axis < candidates.axes(); ++axis) {
    const Candidate& picked = candidates.at(picks, axis);
    if (picked.row.kernel.empty()) continue;
    choice.kernel = picked.row.kernel;
    choice.comm = std::max(choice.comm, candidates.comm(axis, picked.row));
    choice.seconds += candidates.kernel_seconds(axis, picked.row);
    choice.bytes += picked.row.sent;
  }
}

}  // namespace

Choice search_rows(const Rule& rule, const Candidates& candidates, const SearchLimits& limits,
                   const SeePriced& see) {
  const Pricer pricer(rule, candidates.operands());
  const auto orders = orders_of(candidates.operands(), candidates.axes());
  BestFirst open(candidates);
  Choice best;
  best.seconds = kInfinite;
  int priced = 0;
  for (int seen = 0; !open.empty() && seen < limits.seen; ++seen) {
    BestFirst::Item item = open.pop();
    if (limits.stop_when_free && item.seconds > limits.slack * best.seconds) break;
    std::string conflict = candidates.conflict(item.picks);
    if (!conflict.empty()) {
      if (see) see({{}, std::move(item.picks), item.work, item.memory, std::move(conflict)});
      continue;
    }
    const bool order_matters = orders.size() > 1 && nests(candidates, item.picks);
    const size_t results = candidates.at(item.picks, 0).row.results.size();
    Choice found;
    found.seconds = kInfinite;
    for (size_t i = order_matters ? 0 : orders.size() - 1; i < orders.size(); ++i) {
      Choice choice = pricer.price(
          candidates.axes(), results,
          [&](int axis, size_t tensor) -> const Placement& {
            const Row& row = candidates.at(item.picks, axis).row;
            return tensor < row.operands.size() ? row.operands[tensor]
                                                : row.results[tensor - row.operands.size()];
          },
          orders[i]);
      if (choice.seconds < found.seconds) found = std::move(choice);
    }
    if (found.seconds == kInfinite) continue;
    add_kernel(candidates, item.picks, found);
    if (found.seconds < best.seconds) best = found;
    if (see) see({std::move(found), std::move(item.picks), item.work, item.memory, {}});
    if (++priced >= limits.priced || (limits.stop_when_free && best.seconds == 0)) break;
  }
  if (best.seconds == kInfinite) {
    const Candidate& any = candidates.of_axis(0).front();
    static const Placement replicate;
    best = pricer.price(candidates.axes(), any.row.results.size(),
                        [](int, size_t) -> const Placement& { return replicate; }, {});
  }
  return best;
}

Choice price_joint(const Rule& rule, const OpCall& call, const JointRow& row) {
  static const Placement replicate;
  const auto operands = call.operands();
  std::vector<int> order = row.order;
  const auto first = std::ranges::find_if(operands, &Sharding::defined);
  if (order.empty() && first != operands.end() && !first->has_default_order())
    order = first->order();
  return Pricer(rule, operands)
      .price(
          call.mesh.ndim(), row.results.size(),
          [&](int axis, size_t tensor) -> const Placement& {
            const auto& list = tensor < row.operands.size()
                                   ? row.operands[tensor]
                                   : row.results[tensor - row.operands.size()];
            return list.empty() ? replicate : list[static_cast<size_t>(axis)];
          },
          std::move(order));
}

}  // namespace tessera::rules
