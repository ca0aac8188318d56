#include "tessera/plan/problem.h"

#include <algorithm>

#include "tessera/base/errors.h"
#include "tessera/plan/extent.h"

namespace tessera::plan {
namespace {

constexpr int kSlotsToLend = 5;

ReduceOp family(const Placement& partial) {
  return partial.reduce_op() == ReduceOp::avg ? ReduceOp::sum : partial.reduce_op();
}

const Placement* first_partial(const Sharding& sharding) {
  const auto placements = sharding.placements();
  const auto found = std::ranges::find_if(placements, &Placement::is_partial);
  return found == placements.end() ? nullptr : &*found;
}

bool has_ragged(const Sharding& sharding) {
  return std::ranges::any_of(sharding.placements(), [](const Placement& p) {
    return p.kind() == Placement::Kind::ragged;
  });
}

}  // namespace

Problem::Problem(const Sharding& from, const Sharding& to, const cost::Machine& machine)
    : from_(from), to_(to), machine_(machine) {
  read_axes();
  read_slots();
  start_ = read(from_);
  goal_ = read(to_);
  has_ragged_ = has_ragged(from_) || has_ragged(to_);
  list_shards();
  fill_extents();
  find_equivalent();
  fill_prices();
}

void Problem::read_axes() {
  const auto& mesh = from_.mesh();
  for (int axis = 0; axis < mesh.ndim(); ++axis) {
    if (mesh.size(axis) > 1) mesh_axis_.push_back(axis);
  }
  if (axes() > kMaxAxes) {
    throw NotSupported(join_text("redistribution on mesh ", mesh, ": ", axes(),
                                 " axes of more than one rank, at most ", kMaxAxes,
                                 " are planned for; flatten some"));
  }
  const Placement* before = first_partial(from_);
  const Placement* after = first_partial(to_);
  partials_clash_ = before != nullptr && after != nullptr && family(*before) != family(*after);
  for (int axis = 0; axis < axes(); ++axis) {
    axis_ranks_[axis] = mesh.size(mesh_axis(axis));
    const Placement& p = from_.placement(mesh_axis(axis));
    const Placement& q = to_.placement(mesh_axis(axis));
    if (p.is_partial() && q.is_partial() && family(p) == ReduceOp::sum &&
        family(q) == ReduceOp::sum) {
      can_rescale_ |= only(axis);
    }
  }
}

/// The dims that either side shards, then the largest of the others, which intermediate shardings
/// may use.
void Problem::read_slots() {
  std::vector<int> others;
  for (int dim = 0; dim < from_.ndim(); ++dim) {
    const bool used = !from_.axes_of_dim(dim).empty() || !to_.axes_of_dim(dim).empty();
    (used ? slots_ : others).push_back(dim);
  }
  const auto size = [&](int dim) { return from_.shape()[static_cast<size_t>(dim)]; };
  std::ranges::stable_sort(others, std::greater<>(), size);
  fixed_bytes_ = dtype_bytes(from_.dtype());
  for (int dim : others) {
    if (slots() < kSlotsToLend) {
      slots_.push_back(dim);
    } else {
      fixed_bytes_ *= size(dim);
    }
  }
  for (auto& slot_of : slot_of_) {
    for (int l = 0; l < slots(); ++l) slot_of[kFirstSlot + l] = static_cast<uint8_t>(l);
  }
}

/// If the target keeps the source's partial or irregular shard, it gets the source's code.
Layout Problem::read(const Sharding& sharding) const {
  Layout out;
  for (int axis = 0; axis < axes(); ++axis) {
    const Placement& p = sharding.placement(mesh_axis(axis));
    const bool same = p == from_.placement(mesh_axis(axis));
    if (p.is_partial()) {
      out.set(axis, same ? kPartialFrom : kPartialTo);
    } else if (p.is_sharded()) {
      const auto nested = sharding.axes_of_dim(p.dim());
      const auto place = std::ranges::find(nested, mesh_axis(axis)) - nested.begin();
      const auto slot = std::ranges::find(slots_, p.dim()) - slots_.begin();
      const auto plain = static_cast<Code>(kFirstSlot + slot);
      const Code irregular = same ? kIrregularFrom : kIrregularTo;
      out.set(axis, p.is_plain_shard() ? plain : irregular, static_cast<int>(place));
    }
  }
  return out;
}

const Placement& Problem::irregular(int axis, Code code) const {
  return (code == kIrregularFrom ? from_ : to_).placement(mesh_axis(axis));
}

void Problem::list_shards() {
  for (int axis = 0; axis < axes(); ++axis) {
    for (const Layout* end : {&start_, &goal_}) {
      const Code code = end->code(axis);
      if (!is_irregular(code)) continue;
      const auto slot = std::ranges::find(slots_, irregular(axis, code).dim()) - slots_.begin();
      slot_of_[axis][code] = static_cast<uint8_t>(slot);
    }
    for (int l = 0; l < slots(); ++l) {
      shards_[axis].push_back(static_cast<Code>(kFirstSlot + l));
    }
    if (is_irregular(goal_.code(axis))) shards_[axis].push_back(goal_.code(axis));
  }
}

/// ceil(ceil(n/a)/b) equals ceil(n/ab), whatever the order.
void Problem::fill_extents() {
  const size_t sets = size_t{1} << axes();
  std::vector<int64_t> pieces(sets, 1);
  for (size_t set = 1; set < sets; ++set) {
    const int last = std::bit_width(set) - 1;
    pieces[set] = pieces[set ^ (size_t{1} << last)] * axis_ranks_[last];
  }
  extents_.reserve(static_cast<size_t>(slots()) * sets);
  for (int dim : slots_) {
    const int64_t n = from_.shape()[static_cast<size_t>(dim)];
    for (int64_t k : pieces) extents_.push_back((n + k - 1) / k);
  }
}

void Problem::find_equivalent() {
  const auto is_free = [&](int l) {
    const int dim = slots_[static_cast<size_t>(l)];
    return from_.axes_of_dim(dim).empty() && to_.axes_of_dim(dim).empty();
  };
  const AxisSet sets = only(axes());
  for (int b = 0; b < slots(); ++b) {
    for (int a = 0; a < b && is_free(b); ++a) {
      bool alike = is_free(a);
      for (AxisSet shard_axes = 1; shard_axes < sets && alike; ++shard_axes) {
        alike = plain_extent(a, shard_axes) * plain_extent(b, 0) ==
                plain_extent(b, shard_axes) * plain_extent(a, 0);
      }
      if (alike) equivalent_[static_cast<size_t>(b)] |= 1U << a;
    }
  }
}

void Problem::fill_prices() {
  const auto links = cost::links_of(from_.mesh(), machine_);
  prices_.resize(size_t{1} << axes());
  fill_rates(prices_[0]);
  for (AxisSet group = 1; group < prices_.size(); ++group) {
    const int last = std::bit_width(group) - 1;
    const Price& rest = prices_[group & ~only(last)];
    const cost::Link& link = links[static_cast<size_t>(mesh_axis(last))];
    Price& price = prices_[group];
    price.link = rest.ranks == 1 ? link : cost::slowest(std::array{rest.link, link});
    price.ranks = rest.ranks * axis_ranks_[last];
    fill_rates(price);
  }
}

/// Every cost function is a start-up time plus a rate.
void Problem::fill_rates(Price& price) const {
  const auto set = [&](Move move, const auto& seconds) {
    constexpr int64_t kMany = int64_t{1} << 40;
    const double start_s = seconds(int64_t{0});
    price.rates[static_cast<size_t>(move)] = {
        start_s, (seconds(kMany) - start_s) / static_cast<double>(kMany)};
  };
  const auto copy = [&](int64_t n) { return cost::copy_seconds(machine_, n); };
  for (Move move : {Move::slice, Move::keep_one, Move::rescale}) set(move, copy);
  set(Move::all_gather,
      [&](int64_t n) { return cost::all_gather_seconds(price.link, price.ranks, n); });
  set(Move::all_reduce,
      [&](int64_t n) { return cost::all_reduce_seconds(price.link, price.ranks, n); });
  set(Move::reduce_scatter,
      [&](int64_t n) { return cost::reduce_scatter_seconds(price.link, price.ranks, n); });
  set(Move::all_to_all,
      [&](int64_t n) { return cost::all_to_all_seconds(price.link, price.ranks, n); });
}

bool Problem::exists_slow(const Layout& layout) const {
  bool partial_from = false;
  bool partial_to = false;
  for (int axis = 0; axis < axes(); ++axis) {
    const Code code = layout.code(axis);
    partial_from |= code == kPartialFrom;
    partial_to |= code == kPartialTo;
    if (!is_ragged(axis, code)) continue;
    const bool as_source = code == start_.code(axis) && same_before(layout, start_, axis);
    const bool as_target = code == goal_.code(axis) && same_before(layout, goal_, axis);
    if (!as_source && !as_target) return false;
  }
  return !(partials_clash_ && partial_from && partial_to);
}

/// Whether the same axes shard the dim of `axis` in the same way up to it.
bool Problem::same_before(const Layout& a, const Layout& b, int axis) const {
  if (a.cell(axis) != b.cell(axis)) return false;
  int same = 0;
  for (int other = 0; other < axes(); ++other) {
    const Code code = b.code(other);
    if (is_shard(code) && slot(other, code) == slot(axis, b.code(axis)) &&
        b.place(other) < b.place(axis) && a.cell(other) == b.cell(other)) {
      ++same;
    }
  }
  return same == b.place(axis);
}

int64_t Problem::local_bytes(const Layout& layout) const {
  std::array<AxisSet, kMaxSlots> shard_axes{};
  bool any_irregular = false;
  for (int axis = 0; axis < axes(); ++axis) {
    const Code code = layout.code(axis);
    if (!is_shard(code)) continue;
    shard_axes[slot(axis, code)] |= only(axis);
    any_irregular |= is_irregular(code);
  }
  int64_t bytes = fixed_bytes_;
  for (int l = 0; l < slots(); ++l) {
    bytes *=
        any_irregular && shard_axes[l] != 0 ? extent(layout, l) : plain_extent(l, shard_axes[l]);
  }
  return bytes;
}

int64_t Problem::extent(const Layout& layout, int l) const {
  Layout mine;  // only the cells on this slot
  AxisSet shard_axes = 0;
  bool any_irregular = false;
  for (int axis = 0; axis < axes(); ++axis) {
    const Code code = layout.code(axis);
    if (!is_shard(code) || slot(axis, code) != l) continue;
    mine.set_cell(axis, layout.cell(axis));
    shard_axes |= only(axis);
    any_irregular |= is_irregular(code);
  }
  if (!any_irregular) return plain_extent(l, shard_axes);
  for (const auto& [key, extent] : irregular_extents_) {
    if (key == mine.key()) return extent;
  }
  const int64_t extent = irregular_extent(mine, shard_axes, slots_[static_cast<size_t>(l)]);
  irregular_extents_.emplace_back(mine.key(), extent);
  return extent;
}

int64_t Problem::irregular_extent(const Layout& layout, AxisSet shard_axes, int dim) const {
  const Placement plain = Shard(dim);
  std::array<Level, kMaxAxes> levels;
  for_each_axis(shard_axes, [&](int axis) {
    const Code code = layout.code(axis);
    levels[static_cast<size_t>(layout.place(axis))] = {
        is_irregular(code) ? &irregular(axis, code) : &plain, axis_ranks_[axis]};
  });
  return largest_extent(from_.shape()[static_cast<size_t>(dim)],
                        std::span(levels).first(static_cast<size_t>(count(shard_axes))));
}

int64_t Problem::bytes_sent(Move move, AxisSet group, int64_t from_bytes, int64_t to_bytes) const {
  const int64_t n = ranks(group);
  if (is_local(move) || n <= 1) return 0;
  const int64_t local = move == Move::all_gather ? to_bytes : from_bytes;
  const int64_t once = local / n * (n - 1) + local % n * (n - 1) / n;
  return move == Move::all_reduce ? 2 * once : once;
}

Sharding Problem::sharding(const Layout& layout) const {
  if (layout == start_) return from_;
  if (layout == goal_) return to_;
  std::vector<Placement> placements(from_.placements().size());
  std::vector<int> order;
  for (int place = 0; place < axes(); ++place) {
    for (int axis = 0; axis < axes(); ++axis) {
      if (layout.place(axis) == place) order.push_back(mesh_axis(axis));
    }
  }
  for (int axis = 0; axis < axes(); ++axis) {
    const Code code = layout.code(axis);
    Placement& p = placements[static_cast<size_t>(mesh_axis(axis))];
    if (code >= kFirstSlot) {
      p = Shard(slots_[static_cast<size_t>(slot(axis, code))]);
    } else if (code != kReplicate) {
      const bool as_source = code == kPartialFrom || code == kIrregularFrom;
      p = (as_source ? from_ : to_).placement(mesh_axis(axis));
    }
  }
  return from_.with_placements(std::move(placements), std::move(order));
}

}  // namespace tessera::plan
