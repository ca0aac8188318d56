#include "tessera/rules/choose.h"

#include <algorithm>
#include <limits>
#include <queue>
#include <set>

#include "tessera/base/errors.h"
#include "tessera/plan/plan.h"
#include "tessera/rules/candidates.h"

namespace tessera::rules {
namespace {

/// How many combinations get their true price, and how many are looked at for that.
constexpr int kMaxPriced = 8;
constexpr int kMaxSeen = 4'000;
/// A guess may be too high by so much (moves of several axes may merge into one).
constexpr double kGuessSlack = 2.0;

using Picks = std::vector<int>;

/// Combinations of one row per axis, by guessed cost, then work, then memory.
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
    // Each combination has one parent: the one with its last raised pick lowered.
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

/// The orders in which axes may cut: those that operands have, and the default.
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

/// Turns rows into shardings and prices them; infinite if they cannot be reached.
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
    } catch (const Error&) {  // ragged tables that do not fit, moves that do not exist
      choice.seconds = std::numeric_limits<double>::infinity();
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

struct Priced {
  Choice choice;
  BestFirst::Item item;
  std::string conflict;
};

/// Prices the most promising combinations; `keep` sees each, in order.
struct Limits {
  int priced = kMaxPriced;
  double slack = kGuessSlack;
  bool stop_when_free = true;
};

template <typename Keep>
Choice search(const Rule& rule, const OpCall& call, const Limits& limits, const Keep& keep) {
  const Candidates candidates(rule, call);
  const Pricer pricer(rule, candidates.operands());
  const auto orders = orders_of(candidates.operands(), candidates.axes());
  BestFirst open(candidates);
  Choice best;
  best.seconds = std::numeric_limits<double>::infinity();
  int priced = 0;
  for (int seen = 0; !open.empty() && seen < kMaxSeen; ++seen) {
    BestFirst::Item item = open.pop();
    if (limits.stop_when_free && item.seconds > limits.slack * best.seconds) break;
    std::string conflict = candidates.conflict(item.picks);
    if (!conflict.empty()) {
      keep(Priced{{}, std::move(item), std::move(conflict)}, candidates);
      continue;
    }
    const bool order_matters = orders.size() > 1 && nests(candidates, item.picks);
    const size_t results = candidates.at(item.picks, 0).row.results.size();
    Choice found;
    found.seconds = std::numeric_limits<double>::infinity();
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
    if (found.seconds == std::numeric_limits<double>::infinity()) continue;
    for (int axis = 0; axis < candidates.axes(); ++axis) {
      const auto handler = candidates.at(item.picks, axis).row.handler;
      if (!handler.empty()) found.handler = handler;
    }
    if (found.seconds < best.seconds) best = found;
    keep(Priced{std::move(found), std::move(item), {}}, candidates);
    if (++priced >= limits.priced || (limits.stop_when_free && best.seconds == 0)) break;
  }
  if (best.seconds == std::numeric_limits<double>::infinity()) {
    const Candidate& any = candidates.of_axis(0).front();
    static const Placement replicate;
    best = pricer.price(candidates.axes(), any.row.results.size(),
                        [](int, size_t) -> const Placement& { return replicate; }, {});
  }
  return best;
}

Choice choose_joint(const Rule& rule, const OpCall& call) {
  const auto operands = call.operands();
  const Pricer pricer(rule, operands);
  Choice best;
  best.seconds = std::numeric_limits<double>::infinity();
  static const Placement replicate;
  std::vector<int> order;
  for (const auto& s : operands) {
    if (s.defined() && !s.has_default_order()) order = s.order();
    if (s.defined()) break;
  }
  auto rows = rule.joint(call);
  for (const auto& row : rows) {
    Choice choice = pricer.price(
        call.mesh.ndim(), row.results.size(),
        [&](int axis, size_t tensor) -> const Placement& {
          const auto& list = tensor < row.operands.size()
                                 ? row.operands[tensor]
                                 : row.results[tensor - row.operands.size()];
          return list.empty() ? replicate : list[static_cast<size_t>(axis)];
        },
        row.order.empty() ? order : row.order);
    if (choice.seconds < best.seconds) best = std::move(choice);
    if (best.seconds == 0) break;
  }
  ensure(best.seconds < std::numeric_limits<double>::infinity(), "a rule offers no row at all");
  return best;
}

std::string side_text(const Candidates& candidates, const Picks& picks, bool results) {
  std::string out;
  const Row& first = candidates.at(picks, 0).row;
  const size_t count = results ? first.results.size() : first.operands.size();
  for (size_t t = 0; t < count; ++t) {
    if (!results && !candidates.operands()[t].defined()) continue;
    if (!out.empty()) out += " | ";
    for (int axis = 0; axis < candidates.axes(); ++axis) {
      const Row& row = candidates.at(picks, axis).row;
      if (axis > 0) out += ',';
      out += (results ? row.results : row.operands)[t].to_text();
    }
  }
  return out;
}

}  // namespace

Choice choose(const Rule& rule, const OpCall& call) {
  if (rule.decide) return rule.decide(call);
  if (rule.joint) return choose_joint(rule, call);
  return search(rule, call, {}, [](const Priced&, const Candidates&) {});
}

Explanation explain(const Rule& rule, const OpCall& call) {
  Explanation out;
  if (rule.decide || rule.joint) {
    const Choice choice = choose(rule, call);
    Explanation::Candidate c;
    for (const auto& s : choice.operands) {
      if (s.defined()) c.operands += (c.operands.empty() ? "" : " | ") + s.placements_text();
    }
    for (const auto& r : choice.results)
      c.results += (c.results.empty() ? "" : " | ") + placements_text(r);
    c.seconds = choice.seconds;
    c.bytes = choice.bytes;
    c.note = "chosen";
    out.candidates.push_back(std::move(c));
    return out;
  }
  const Choice best = choose(rule, call);
  bool chosen = false;
  search(rule, call, {32, 1e12, false}, [&](const Priced& p, const Candidates& candidates) {
    Explanation::Candidate c;
    c.operands = side_text(candidates, p.item.picks, false);
    c.results = side_text(candidates, p.item.picks, true);
    c.seconds = p.choice.seconds;
    c.bytes = p.choice.bytes;
    if (!p.conflict.empty()) {
      c.note = "dropped: " + p.conflict;
    } else if (!chosen && p.choice.operands == best.operands && p.choice.results == best.results) {
      c.note = "chosen";
      chosen = true;
    } else {
      c.note = join_text((p.choice.seconds - best.seconds) * 1e6, " us dearer");
    }
    out.candidates.push_back(std::move(c));
  });
  std::ranges::stable_sort(out.candidates, [](const auto& a, const auto& b) {
    return a.note.starts_with("dropped") < b.note.starts_with("dropped") ||
           (a.note.starts_with("dropped") == b.note.starts_with("dropped") &&
            a.seconds < b.seconds);
  });
  return out;
}

std::string Explanation::to_text() const {
  size_t wide = 8, wide_results = 7;
  for (const auto& c : candidates) {
    wide = std::max(wide, c.operands.size());
    wide_results = std::max(wide_results, c.results.size());
  }
  const auto pad = [](std::string s, size_t n) {
    return s + std::string(n - std::min(n, s.size()), ' ');
  };
  std::string out = pad("operands", wide) + "  " + pad("results", wide_results) + "  cost\n";
  for (const auto& c : candidates) {
    out += pad(c.operands, wide) + "  " + pad(c.results, wide_results) + "  ";
    if (!c.note.starts_with("dropped"))
      out += join_text(c.seconds * 1e6, " us, ", bytes_text(c.bytes), "  ");
    out += c.note + "\n";
  }
  return out;
}

}  // namespace tessera::rules
