#include "tests/support_pure/replay.h"

#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <vector>

#include "tessera/base/text.h"
#include "tessera/sharding/local_shape.h"

namespace tessera::test {
namespace {

using plan::Move;
using plan::Step;

struct Mismatch {
  std::string what;
};

template <typename... Parts>
void check(bool ok, const Parts&... parts) {
  if (!ok) throw Mismatch{join_text(parts...)};
}

/// What one rank holds: for each dim the global indexes, and the values in row-major order.
struct Part {
  std::vector<std::vector<int64_t>> indexes;
  std::vector<std::vector<int64_t>> where;  // by dim, global index -> place or -1
  std::vector<int64_t> values;

  int64_t numel() const {
    int64_t n = 1;
    for (const auto& dim : indexes) n *= std::ssize(dim);
    return n;
  }

  /// Place in `values` of a global element, if held.
  std::optional<size_t> find(const std::vector<int64_t>& element) const {
    int64_t at = 0;
    for (size_t dim = 0; dim < element.size(); ++dim) {
      const int64_t place = where[dim][static_cast<size_t>(element[dim])];
      if (place < 0) return std::nullopt;
      at = at * std::ssize(indexes[dim]) + place;
    }
    return static_cast<size_t>(at);
  }
};

using Parts = std::map<int, Part>;  // by rank

Part empty_part(const Sharding& sharding, const Coordinate& coordinate) {
  Part part;
  for (int dim = 0; dim < sharding.ndim(); ++dim) {
    auto& indexes = part.indexes.emplace_back();
    auto& where = part.where.emplace_back(sharding.shape()[static_cast<size_t>(dim)], -1);
    for (const Interval& held : held_intervals(sharding, dim, coordinate)) {
      for (int64_t i = held.begin; i < held.end; ++i) {
        where[static_cast<size_t>(i)] = std::ssize(indexes);
        indexes.push_back(i);
      }
    }
  }
  return part;
}

/// Fills a part with f(element), elements in row-major order.
template <typename F>
void fill(Part& part, const F& f) {
  const int64_t n = part.numel();
  part.values.reserve(static_cast<size_t>(n));
  std::vector<int64_t> element(part.indexes.size());
  for (int64_t i = 0; i < n; ++i) {
    int64_t rest = i;
    for (size_t dim = element.size(); dim-- > 0;) {
      const int64_t size = std::ssize(part.indexes[dim]);
      element[dim] = part.indexes[dim][static_cast<size_t>(rest % size)];
      rest /= size;
    }
    part.values.push_back(f(element));
  }
}

std::vector<Coordinate> coordinates(const DeviceMesh& mesh) {
  std::vector<Coordinate> out;
  for (int rank : mesh.ranks()) out.push_back(*mesh.coordinate_of(rank));
  return out;
}

bool is_average(const Placement& p) { return p.is_partial() && p.reduce_op() == ReduceOp::avg; }

int64_t combine(ReduceOp op, int64_t a, int64_t b) {
  switch (op) {
    case ReduceOp::sum:
    case ReduceOp::avg:
      return a + b;
    case ReduceOp::max:
      return std::max(a, b);
    case ReduceOp::min:
      return std::min(a, b);
    case ReduceOp::product:
      return a * b;
    case ReduceOp::band:
      return a & b;
    case ReduceOp::bor:
      return a | b;
    case ReduceOp::bxor:
      return a ^ b;
  }
  return 0;
}

uint64_t mix(uint64_t h) {
  h = (h ^ (h >> 30)) * 0xbf58476d1ce4e5b9ULL;
  h = (h ^ (h >> 27)) * 0x94d049bb133111ebULL;
  return h ^ (h >> 31);
}

/// The values of a tensor that is sharded as `from` says: what each rank adds to an element, and
/// what the addends come to.
class Truth {
 public:
  Truth(const Sharding& from, uint64_t seed) : from_(from), seed_(seed) {
    for (int axis = 0; axis < from.mesh().ndim(); ++axis) {
      const Placement& p = from.placement(axis);
      const int64_t n = from.mesh().size(axis);
      scale_ *= n;
      if (!p.is_partial()) continue;
      partial_axes_.push_back(axis);
      op_ = p.reduce_op() == ReduceOp::avg ? ReduceOp::sum : p.reduce_op();
      if (is_average(p)) divisor_ *= n;
    }
  }

  int64_t addend(const std::vector<int64_t>& element, const Coordinate& at) const {
    uint64_t h = mix(seed_);
    for (int64_t i : element) h = mix(h + static_cast<uint64_t>(i) + 1);
    for (int axis : partial_axes_) {
      h = mix(h + static_cast<uint64_t>(at[static_cast<size_t>(axis)]) + 1);
    }
    // Small enough for any reduction of all ranks that may follow. Sums are divided at most once
    // for each axis, by its size.
    if (op_ == ReduceOp::sum) return static_cast<int64_t>(h % 2001) * scale_;
    return static_cast<int64_t>(op_ == ReduceOp::product ? h % 3 + 1 : h % 4096);
  }

  int64_t value(const std::vector<int64_t>& element) const {
    Coordinate at(static_cast<size_t>(from_.mesh().ndim()), 0);
    std::optional<int64_t> sum;
    while (true) {
      const int64_t one = addend(element, at);
      sum = sum ? combine(op_, *sum, one) : one;
      size_t i = 0;
      for (; i < partial_axes_.size(); ++i) {
        int& digit = at[static_cast<size_t>(partial_axes_[i])];
        if (++digit < from_.mesh().size(partial_axes_[i])) break;
        digit = 0;
      }
      if (i == partial_axes_.size()) break;
    }
    return *sum / divisor_;
  }

 private:
  Sharding from_;
  uint64_t seed_;
  std::vector<int> partial_axes_;
  ReduceOp op_ = ReduceOp::sum;
  int64_t divisor_ = 1;
  int64_t scale_ = 1;
};

Parts deal(const Sharding& sharding, const Truth& truth) {
  Parts parts;
  for (const auto& at : coordinates(sharding.mesh())) {
    Part part = empty_part(sharding, at);
    fill(part, [&](const auto& element) { return truth.addend(element, at); });
    parts[sharding.mesh().rank_at(at)] = std::move(part);
  }
  return parts;
}

/// What is expected of the placements of an axis that a move acts on.
bool fits(Move move, const Placement& from, const Placement& to) {
  const auto linear = [](const Placement& p) {
    return p.is_partial() && (p.reduce_op() == ReduceOp::sum || p.reduce_op() == ReduceOp::avg);
  };
  switch (move) {
    case Move::slice:
      return from.is_replicate() && to.is_sharded();
    case Move::keep_one:
      return from.is_replicate() && to.is_partial();
    case Move::rescale:
      return linear(from) && linear(to) && from != to;
    case Move::all_gather:
      return from.is_sharded() && to.is_replicate();
    case Move::all_reduce:
      return from.is_partial() && to.is_replicate();
    case Move::reduce_scatter:
      return from.is_partial() && to.is_sharded();
    case Move::all_to_all:
      return from.is_sharded() && to.is_sharded();
    case Move::transfer:
      return false;
  }
  return false;
}

void check_form(const Step& step) {
  if (step.move == Move::transfer) {
    check(step.axes.empty(), "a transfer has no axes");
    check(!step.from.has_partial() && !step.to.has_partial(), "a transfer of partial values");
    return;
  }
  check(step.from.mesh() == step.to.mesh(), "the mesh changes");
  const std::set<int> axes(step.axes.begin(), step.axes.end());
  check(axes.size() == step.axes.size() && !axes.empty(), "axes twice or none");
  for (int axis = 0; axis < step.from.mesh().ndim(); ++axis) {
    const Placement& from = step.from.placement(axis);
    const Placement& to = step.to.placement(axis);
    const bool ok = axes.count(axis) == 0 ? from == to : fits(step.move, from, to);
    check(ok, "axis ", step.from.mesh().axis_name(axis), " goes from ", from, " to ", to);
  }
}

/// The parts of the ranks that take part in a step with one rank.
std::vector<const Part*> group_of(const Step& step, int rank, const Parts& before) {
  std::vector<const Part*> group;
  if (step.move == Move::transfer) {
    for (int member : step.from.mesh().ranks()) group.push_back(&before.at(member));
  } else if (plan::is_local(step.move)) {
    group.push_back(&before.at(rank));
  } else {
    const auto& mesh = step.from.mesh();
    const Coordinate me = *mesh.coordinate_of(rank);
    for (const auto& other : coordinates(mesh)) {
      bool mate = true;
      for (int axis = 0; axis < mesh.ndim(); ++axis) {
        const auto a = static_cast<size_t>(axis);
        mate &= other[a] == me[a] || std::ranges::find(step.axes, axis) != step.axes.end();
      }
      if (mate) group.push_back(&before.at(mesh.rank_at(other)));
    }
  }
  return group;
}

/// The element as any member of the group holds it; all that do must agree.
int64_t fetch(const std::vector<const Part*>& group, const std::vector<int64_t>& element) {
  std::optional<int64_t> found;
  for (const Part* part : group) {
    const auto at = part->find(element);
    if (!at) continue;
    check(!found || *found == part->values[*at], "two ranks disagree on element ",
          list_text(element));
    found = part->values[*at];
  }
  check(found.has_value(), "no rank of the group holds element ", list_text(element));
  return *found;
}

int64_t divided(int64_t sum, int64_t by) {
  check(sum % by == 0, sum, " does not divide by ", by);
  return sum / by;
}

int64_t reduce(const Step& step, const std::vector<const Part*>& group,
               const std::vector<int64_t>& element) {
  ReduceOp op = ReduceOp::sum;
  int64_t divisor = 1;
  for (int axis : step.axes) {
    const Placement& p = step.from.placement(axis);
    op = p.reduce_op() == ReduceOp::avg ? ReduceOp::sum : p.reduce_op();
    if (is_average(p)) divisor *= step.from.mesh().size(axis);
  }
  std::optional<int64_t> sum;
  for (const Part* part : group) {
    const auto at = part->find(element);
    check(at.has_value(), "a rank lacks its addend of element ", list_text(element));
    sum = sum ? combine(op, *sum, part->values[*at]) : part->values[*at];
  }
  return divided(*sum, divisor);
}

/// What a rank has of a whole value once it is partial: all of it where the reduction does not mind
/// to see it again, else on the first rank of the axis only.
int64_t kept(const Step& step, const Coordinate& me, int64_t value) {
  for (int axis : step.axes) {
    const ReduceOp op = step.to.placement(axis).reduce_op();
    if (me[static_cast<size_t>(axis)] == 0) continue;
    if (op == ReduceOp::sum || op == ReduceOp::bxor) return 0;
    if (op == ReduceOp::product) return 1;
  }
  return value;
}

int64_t rescaled(const Step& step, int64_t value) {
  for (int axis : step.axes) {
    const int64_t n = step.to.mesh().size(axis);
    value = is_average(step.to.placement(axis)) ? value * n : divided(value, n);
  }
  return value;
}

Parts run(const Step& step, const Parts& before) {
  check_form(step);
  Parts after;
  for (const auto& me : coordinates(step.to.mesh())) {
    const int rank = step.to.mesh().rank_at(me);
    const auto group = group_of(step, rank, before);
    Part part = empty_part(step.to, me);
    fill(part, [&](const std::vector<int64_t>& element) {
      switch (step.move) {
        case Move::all_reduce:
        case Move::reduce_scatter:
          return reduce(step, group, element);
        case Move::keep_one:
          return kept(step, me, fetch(group, element));
        case Move::rescale:
          return rescaled(step, fetch(group, element));
        default:
          return fetch(group, element);
      }
    });
    after[rank] = std::move(part);
  }
  return after;
}

/// Every rank holds exactly its part, and partial values come to the truth.
void check_parts(const Sharding& sharding, const Parts& parts, const Truth& truth) {
  const auto& mesh = sharding.mesh();
  Step all{Move::all_reduce, {}, sharding, sharding};
  for (int axis = 0; axis < mesh.ndim(); ++axis) {
    if (sharding.placement(axis).is_partial()) all.axes.push_back(axis);
  }
  check(parts.size() == static_cast<size_t>(mesh.size()), "the ranks are not the mesh's");
  for (const auto& me : coordinates(mesh)) {
    const Part& part = parts.at(mesh.rank_at(me));
    check(part.indexes == empty_part(sharding, me).indexes, "rank ", mesh.rank_at(me),
          " holds other elements");
    const auto group = group_of(all, mesh.rank_at(me), parts);
    Part copy = part;
    copy.values.clear();
    fill(copy, [&](const std::vector<int64_t>& element) {
      const int64_t value = reduce(all, group, element);
      check(value == truth.value(element), "element ", list_text(element), " is ", value,
            " and not ", truth.value(element), " on rank ", mesh.rank_at(me));
      return value;
    });
  }
}

std::string run_all(const plan::Plan& plan, uint64_t seed) {
  const Truth truth(plan.from, seed);
  Parts parts = deal(plan.from, truth);
  size_t number = 0;
  try {
    for (const auto& step : plan.steps) {
      parts = run(step, parts);
      ++number;
    }
    check_parts(plan.to, parts, truth);
  } catch (const Mismatch& failure) {
    const std::string at = number < plan.steps.size()
                               ? join_text("in step ", number, ", ", plan.steps[number])
                               : std::string("at the end");
    return join_text(at, ": ", failure.what);
  }
  return "";
}

}  // namespace

std::string replay(const plan::Plan& plan, uint64_t seed) { return run_all(plan, seed); }

bool same_parts(const Sharding& a, const Sharding& b) {
  if (a.mesh() != b.mesh() || !std::ranges::equal(a.shape(), b.shape())) return false;
  for (int axis = 0; axis < a.mesh().ndim(); ++axis) {
    const bool partial = a.placement(axis).is_partial() || b.placement(axis).is_partial();
    if (partial && a.mesh().size(axis) > 1 && a.placement(axis) != b.placement(axis)) return false;
  }
  for (const auto& at : coordinates(a.mesh())) {
    for (int dim = 0; dim < a.ndim(); ++dim) {
      if (held_intervals(a, dim, at) != held_intervals(b, dim, at)) return false;
    }
  }
  return true;
}

}  // namespace tessera::test
