#include "tessera/plan/moves.h"

#include <algorithm>

namespace tessera::plan {
namespace {

/// More axes than this are not merged into one reduce_scatter: there are too many combinations.
constexpr int kMaxScatterAxes = 4;

class Moves {
 public:
  Moves(const Problem& problem, const Layout& from, std::vector<Edge>& out)
      : problem_(problem), from_(from), out_(out) {
    for (int axis = 0; axis < problem.axes(); ++axis) {
      const Code code = from.code(axis);
      if (is_partial(code)) partial_ |= only(axis);
      if (!is_shard(code)) continue;
      sharded_ |= only(axis);
      shard_axes_[problem.slot(axis, code)] |= only(axis);
      ++depth_[problem.slot(axis, code)];
    }
    for (int l = 0; l < problem.slots(); ++l) {
      if (depth_[l] == 0) unsharded_ |= 1U << l;
    }
    for_each_axis(sharded_, [&](int axis) {
      for_each_axis(shard_axes_of(axis), [&](int other) {
        if (from.place(other) > from.place(axis)) inside_[axis] |= only(other);
      });
    });
  }

  void add_all(AxisSet settled) {
    for (int axis = 0; axis < problem_.axes(); ++axis) {
      const Code code = from_.code(axis);
      if (code == kReplicate) {
        add_from_replicate(axis);
      } else if (is_partial(code)) {
        add_from_partial(axis);
      } else if (!has(settled, axis)) {
        add_exchanges(axis);
      }
    }
    add_gathers(from_, 0, 0, sharded_);
    add_reductions();
    if (count(partial_) > 1) {
      const int most = count(partial_) <= kMaxScatterAxes ? kMaxScatterAxes : 2;
      add_scatters(from_, 0, partial_, most);
    }
    add_exchange_to_goal();
  }

 private:
  AxisSet shard_axes_of(int axis) const {
    return shard_axes_[problem_.slot(axis, from_.code(axis))];
  }

  /// Of several equivalent unsharded dims only the first is considered.
  bool is_needless(int slot) const {
    return (unsharded_ >> slot & 1U) != 0 && (problem_.equivalent(slot) & unsharded_) != 0;
  }

  void add(Move move, AxisSet group, const Layout& to) { out_.push_back({move, group, to}); }

  /// `axis` takes a shard and becomes innermost.
  Layout sharded(Layout layout, int axis, Code code) const {
    const int slot = problem_.slot(axis, code);
    layout.set(axis, code, depth_[slot] - (has(shard_axes_[slot], axis) ? 1 : 0));
    return layout;
  }

  Layout with(int axis, Code code) const {
    Layout to = from_;
    to.set(axis, code);
    return to;
  }

  void add_from_replicate(int axis) {
    for (Code code : problem_.shards(axis)) {
      if (is_needless(problem_.slot(axis, code))) continue;
      add(Move::slice, 0, sharded(from_, axis, code));
    }
    const Code goal = problem_.goal().code(axis);
    if (is_partial(goal)) add(Move::keep_one, 0, with(axis, goal));
  }

  void add_from_partial(int axis) {
    for (Code code : problem_.shards(axis)) {
      if (is_needless(problem_.slot(axis, code))) continue;
      add(Move::reduce_scatter, only(axis), sharded(from_, axis, code));
    }
    const Code goal = problem_.goal().code(axis);
    if (from_.code(axis) == kPartialFrom && goal == kPartialTo && problem_.can_rescale(axis)) {
      add(Move::rescale, 0, with(axis, goal));
    }
  }

  void add_exchanges(int axis) {
    Layout without = from_;
    for_each_axis(inside_[axis], [&](int inner) {
      without.set(inner, from_.code(inner), from_.place(inner) - 1);
    });
    for (Code code : problem_.shards(axis)) {
      if (code == from_.code(axis) && inside_[axis] == 0) continue;  // already innermost
      if (is_needless(problem_.slot(axis, code))) continue;
      add(Move::all_to_all, only(axis) | inside_[axis], sharded(without, axis, code));
    }
  }

  /// Decides for each axis of `rest` whether it is in the group, with all that are inside.
  void add_gathers(const Layout& layout, AxisSet group, AxisSet inside, AxisSet rest) {
    if (group != 0 && (inside & ~group) == 0) add(Move::all_gather, group, layout);
    for (; rest != 0; rest &= rest - 1) {
      const int axis = std::countr_zero(rest);
      Layout to = layout;
      to.set(axis, kReplicate);
      add_gathers(to, group | only(axis), inside | inside_[axis], rest & (rest - 1));
    }
  }

  void add_reductions() {
    for_each_subset(partial_, [&](AxisSet group) {
      Layout to = from_;
      for_each_axis(group, [&](int axis) { to.set(axis, kReplicate); });
      add(Move::all_reduce, group, to);
    });
  }

  /// Every way to scatter two or more of the partial axes `rest`, after those in `group`. An axis
  /// may be outside others of the group, so each order is generated once.
  void add_scatters(const Layout& layout, AxisSet group, AxisSet rest, int most) {
    if (count(group) > 1) add(Move::reduce_scatter, group, layout);
    if (most == 0) return;
    for_each_axis(rest, [&](int axis) {
      const AxisSet later = rest & ~(only(axis + 1) - 1);
      for (Code code : problem_.shards(axis)) {
        const int slot = problem_.slot(axis, code);
        if (is_needless(slot)) continue;
        const int outer = depth_[slot];
        const AxisSet mates = scattered_[slot];
        const uint32_t unsharded = unsharded_;
        scattered_[slot] |= only(axis);
        unsharded_ &= ~(1U << slot);
        for (int place = outer; place <= outer + count(mates); ++place) {
          Layout to = layout;
          for_each_axis(mates, [&](int other) {
            const int shift = layout.place(other) >= place ? 1 : 0;
            to.set(other, layout.code(other), layout.place(other) + shift);
          });
          to.set(axis, code, place);
          add_scatters(to, group | only(axis), later, most - 1);
        }
        scattered_[slot] = mates;
        unsharded_ = unsharded;
      }
    });
  }

  /// All axes that shard the tensor in the goal move to their places; axes that shard it only now
  /// become innermost, so that they can be gathered next.
  void add_exchange_to_goal() {
    const Layout& goal = problem_.goal();
    Layout to = from_;
    std::array<int, kMaxSlots> sharded_by_goal{};
    AxisSet strangers = 0;
    for (int axis = 0; axis < problem_.axes(); ++axis) {
      if (is_shard(goal.code(axis))) {
        if (!has(sharded_, axis)) return;
        ++sharded_by_goal[problem_.slot(axis, goal.code(axis))];
        to.set_cell(axis, goal.cell(axis));
      } else if (has(sharded_, axis)) {
        strangers |= only(axis);
      }
    }
    for_each_axis(strangers, [&](int axis) {
      int place = sharded_by_goal[problem_.slot(axis, from_.code(axis))];
      for_each_axis(shard_axes_of(axis) & strangers, [&](int other) {
        if (from_.place(other) < from_.place(axis)) ++place;
      });
      to.set(axis, from_.code(axis), place);
    });
    if (to != from_) add(Move::all_to_all, exchange_group(problem_, from_, to), to);
  }

  const Problem& problem_;
  const Layout& from_;
  std::vector<Edge>& out_;
  AxisSet sharded_ = 0;
  AxisSet partial_ = 0;
  uint32_t unsharded_ = 0;                       // unsharded slots
  std::array<AxisSet, kMaxSlots> shard_axes_{};  // by slot
  std::array<int, kMaxSlots> depth_{};           // by slot: their number
  std::array<AxisSet, kMaxSlots> scattered_{};   // by slot: of the current group of add_scatters
  std::array<AxisSet, kMaxAxes> inside_{};       // by axis: those inside it on its dim
};

}  // namespace

void add_moves(const Problem& problem, const Layout& from, std::vector<Edge>& out,
               AxisSet settled) {
  Moves(problem, from, out).add_all(settled);
}

AxisSet exchange_group(const Problem& problem, const Layout& from, const Layout& to) {
  AxisSet group = 0;
  for (int axis = 0; axis < problem.axes(); ++axis) {
    if (from.cell(axis) != to.cell(axis)) group |= only(axis);
  }
  for (const Layout* layout : {&from, &to}) {
    const AxisSet changed = group;
    for (int inner = 0; inner < problem.axes(); ++inner) {
      const Code code = layout->code(inner);
      if (!is_shard(code)) continue;
      for_each_axis(changed, [&](int outer) {
        if (is_shard(layout->code(outer)) && layout->place(outer) < layout->place(inner) &&
            problem.slot(outer, layout->code(outer)) == problem.slot(inner, code)) {
          group |= only(inner);
        }
      });
    }
  }
  return group;
}

}  // namespace tessera::plan
