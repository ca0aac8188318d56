#include "tessera/partition/lower_plan.h"

#include <algorithm>
#include <numeric>

#include "tessera/base/errors.h"
#include "tessera/base/shape.h"
#include "tessera/partition/groups.h"
#include "tessera/partition/sizes.h"
#include "tessera/partition/tiles.h"
#include "tessera/sharding/local_shape.h"

namespace tessera::partition {
namespace {

using plan::Move;
using plan::Step;
using program::IntOrValue;
using program::Size;
using program::ValueId;

using Shapes = std::vector<std::vector<int64_t>>;

/// The largest of each dim.
std::vector<int64_t> bounding_shape(const Shapes& shapes) {
  std::vector<int64_t> out = shapes[0];
  for (const auto& shape : shapes) {
    for (size_t d = 0; d < out.size(); ++d) out[d] = std::max(out[d], shape[d]);
  }
  return out;
}

bool all_equal(const Shapes& shapes) {
  return std::ranges::all_of(shapes, [&](const auto& shape) { return shape == shapes[0]; });
}

/// An overlap of a tensor with itself.
Overlap whole_of(std::span<const int64_t> shape) {
  Overlap out;
  for (const int64_t n : shape) out.runs.push_back({{0, 0, n}});
  return out;
}

/// True if the parts, one below the other along dim 0, are the tensor itself.
bool stacked_in_order(std::span<const Overlap> places, std::span<const int64_t> shape,
                      bool from_side) {
  int64_t row = 0;
  for (const Overlap& place : places) {
    for (size_t d = 0; d < place.runs.size(); ++d) {
      if (place.runs[d].size() != 1) return false;
      const Run& run = place.runs[d][0];
      const int64_t begin = from_side ? run.from : run.to;
      if (begin != (d == 0 ? row : 0)) return false;
      if (d > 0 && run.length != shape[d]) return false;
    }
    if (place.runs.empty()) return false;
    row += place.runs[0][0].length;
  }
  return row == shape[0];
}

/// One step of a plan for one rank.
class StepWriter {
 public:
  StepWriter(Emitter& emit, const Step& step) : emit_(emit), step_(step) {
    const DeviceMesh& mesh = step.from.mesh();
    members_ = members_of(mesh, step.axes, mesh.my_rank().value());
  }

  /// Writes the collective's start, or the whole of a local step.
  ValueId start(ValueId x) {
    switch (step_.move) {
      case Move::slice:
        return take(emit_, x, overlap(step_.from, me(), step_.to, me()));
      case Move::keep_one:
        return keep_one(x);
      case Move::rescale:
        return emit_.multiply(x, rescale_factor());
      case Move::all_reduce:
        return emit_.all_reduce(x, reduce_op(), members_.name);
      case Move::all_gather:
        return start_gather(x);
      case Move::reduce_scatter:
        return start_scatter(x);
      case Move::all_to_all:
        return start_exchange(x);
      case Move::transfer:
        break;
    }
    throw NotSupported("a program is sharded over one mesh: a move between meshes has no ops");
  }

  /// Arranges what came; the value was waited for.
  ValueId finish(ValueId x) {
    if (step_.move == Move::all_gather) x = finish_gather(x);
    if (step_.move == Move::reduce_scatter) {
      x = take(emit_, x, whole_of(local_shape(step_.to, me())));
    }
    if (step_.move == Move::all_to_all) x = finish_exchange(x);
    const int64_t averaged = averaged_ranks();
    return averaged == 1 ? x : emit_.multiply(x, 1.0 / static_cast<double>(averaged));
  }

  bool communicates() const { return !plan::is_local(step_.move) && members_.size() > 1; }

 private:
  const Coordinate& me() const { return members_.coordinates[members_.me]; }
  int64_t ranks() const { return static_cast<int64_t>(members_.size()); }

  Shapes shapes_of(const Sharding& sharding) const {
    Shapes out;
    for (const auto& member : members_.coordinates) out.push_back(local_shape(sharding, member));
    return out;
  }

  ReduceOp reduce_op() const {
    for (const int axis : step_.axes) {
      const Placement& p = step_.from.placement(axis);
      if (p.is_partial()) return p.reduce_op() == ReduceOp::avg ? ReduceOp::sum : p.reduce_op();
    }
    return ReduceOp::sum;
  }

  int64_t averaged_ranks() const {
    if (plan::is_local(step_.move)) return 1;
    int64_t n = 1;
    for (const int axis : step_.axes) {
      const Placement& p = step_.from.placement(axis);
      if (p.is_partial() && p.reduce_op() == ReduceOp::avg) n *= step_.from.mesh().size(axis);
    }
    return n;
  }

  double rescale_factor() const {
    double factor = 1;
    for (const int axis : step_.axes) {
      const auto n = static_cast<double>(step_.to.mesh().size(axis));
      factor *= step_.to.placement(axis).reduce_op() == ReduceOp::avg ? n : 1 / n;
    }
    return factor;
  }

  /// The value is kept by the first rank where the reduction would count it again, else by all.
  ValueId keep_one(ValueId x) {
    bool keeps = true;
    ReduceOp op = ReduceOp::sum;
    for (const int axis : step_.axes) {
      op = step_.to.placement(axis).reduce_op();
      const bool counts = op == ReduceOp::sum || op == ReduceOp::product || op == ReduceOp::bxor;
      if (counts && me()[static_cast<size_t>(axis)] != 0) keeps = false;
    }
    if (keeps) return x;
    return op == ReduceOp::product ? emit_.ones_like(x) : emit_.zeros_like(x);
  }

  ValueId start_gather(ValueId x) {
    const Shapes shapes = shapes_of(step_.from);
    return emit_.all_gather(emit_.pad(x, bounding_shape(shapes)), ranks(), members_.name);
  }

  /// Where the parts of all members are in the result.
  std::vector<Overlap> gathered_places() const {
    std::vector<Overlap> out;
    for (const auto& member : members_.coordinates) {
      out.push_back(overlap(step_.from, member, step_.to, me()));
    }
    return out;
  }

  ValueId finish_gather(ValueId gathered) {
    const Shapes shapes = shapes_of(step_.from);
    const auto slot = bounding_shape(shapes);
    const auto out = local_shape(step_.to, me());
    const auto places = gathered_places();
    if (stacked_in_order(places, out, false)) {
      // Uneven parts leave gaps, but for those at the end: [10] over 4 is 3,3,3,1 and two zeros.
      bool gaps = false;
      int64_t seen = 0;
      for (const auto& shape : shapes) {
        gaps |= shape[0] > 0 && seen % slot[0] != 0;
        seen += shape[0];
      }
      if (!gaps) return take(emit_, gathered, whole_of(out));
    }
    std::vector<Tile> tiles;
    for (size_t m = 0; m < places.size(); ++m) {
      if (places[m].empty()) continue;
      const auto first = static_cast<int64_t>(m) * slot[0];
      tiles.push_back({emit_.slice(gathered, 0, {first, first + slot[0]}), places[m]});
    }
    if (tiles.empty()) return take(emit_, gathered, whole_of(out));
    return put_together(emit_, tiles, out);
  }

  ValueId start_scatter(ValueId x) {
    const Shapes shapes = shapes_of(step_.to);
    const auto slot = bounding_shape(shapes);
    std::vector<Overlap> places;
    for (const auto& member : members_.coordinates) {
      places.push_back(overlap(step_.from, me(), step_.to, member));
    }
    const auto whole = local_shape(step_.from, me());
    if (!all_equal(shapes) || !stacked_in_order(places, whole, true)) {
      std::vector<ValueId> parts;
      for (const auto& place : places) parts.push_back(emit_.pad(take(emit_, x, place), slot));
      x = emit_.cat(parts, 0);
    }
    return emit_.reduce_scatter(x, reduce_op(), ranks(), members_.name);
  }

  struct Exchange {
    std::vector<Overlap> to_peer, from_peer;
    bool even = false;  ///< all pieces have one shape: they travel as rows
  };

  Exchange exchange() const {
    Exchange out;
    Shapes shapes;
    for (const auto& peer : members_.coordinates) {
      out.to_peer.push_back(overlap(step_.from, me(), step_.to, peer));
      out.from_peer.push_back(overlap(step_.from, peer, step_.to, me()));
      shapes.push_back(taken_shape(out.to_peer.back()));
      shapes.push_back(taken_shape(out.from_peer.back()));
    }
    // Every rank must decide alike, so all pairs count.
    out.even = true;
    for (const auto& a : members_.coordinates) {
      for (const auto& b : members_.coordinates) {
        out.even &= taken_shape(overlap(step_.from, a, step_.to, b)) == shapes[0];
      }
    }
    return out;
  }

  ValueId start_exchange(ValueId x) {
    source_ = x;
    const Exchange pieces = exchange();
    std::vector<ValueId> parts;
    std::vector<IntOrValue> send;
    std::vector<IntOrValue> receive;
    const auto whole = local_shape(step_.from, me());
    if (pieces.even) {
      const bool as_it_is = stacked_in_order(pieces.to_peer, whole, true);
      for (const auto& place : pieces.to_peer) {
        if (!as_it_is) parts.push_back(take(emit_, x, place));
      }
      const ValueId sent = as_it_is ? x : emit_.cat(parts, 0);
      const Size rows = emit_.meta(sent).sizes[0];
      const IntOrValue each = emit_.part(sent, 0, hint_of(rows) / ranks());
      send.assign(members_.size(), each);
      return emit_.all_to_all(sent, send, send, rows, members_.name);
    }
    Size rows = 0;
    for (size_t m = 0; m < members_.size(); ++m) {
      parts.push_back(emit_.flatten(take(emit_, x, pieces.to_peer[m])));
      send.push_back(emit_.count(x, taken_shape(pieces.to_peer[m])));
      receive.push_back(count_of(x, pieces.from_peer[m]));
    }
    const auto out = local_shape(step_.to, me());
    rows = flat_size(x, out);
    return emit_.all_to_all(emit_.cat(parts, 0), receive, send, rows, members_.name);
  }

  /// Sizes of dims that are not of x: a dim that I hold a part of, elsewhere in another part. Those
  /// dims are numbers where parts are uneven; a symbolic dim has the same share of x everywhere.
  IntOrValue count_of(ValueId x, const Overlap& place) {
    return emit_.count(x, taken_shape(place));
  }

  Size flat_size(ValueId x, std::span<const int64_t> shape) const {
    Size out = 1;
    for (size_t d = 0; d < shape.size(); ++d) {
      out = multiply(out, part_of(emit_.meta(x).sizes[d], shape[d]));
    }
    return out;
  }

  ValueId finish_exchange(ValueId received) {
    const Exchange pieces = exchange();
    const auto out = local_shape(step_.to, me());
    std::vector<Tile> tiles;
    if (pieces.even) {
      if (stacked_in_order(pieces.from_peer, out, false)) return received;
      const int64_t rows = hint_of(emit_.meta(received).sizes[0]) / ranks();
      for (size_t m = 0; m < members_.size(); ++m) {
        const auto first = static_cast<int64_t>(m) * rows;
        tiles.push_back(
            {emit_.slice(received, 0, {first, first + rows}), moved_to_piece(pieces.from_peer[m])});
      }
      return put_together(emit_, tiles, out);
    }
    int64_t at = 0;
    for (const Overlap& place : pieces.from_peer) {
      const auto shape = taken_shape(place);
      const int64_t n = product(shape);
      if (n == 0) continue;
      const ValueId flat = emit_.slice(received, 0, {at, at + n});
      tiles.push_back({emit_.unflatten(flat, source_, shape), moved_to_piece(place)});
      at += n;
    }
    if (tiles.empty()) return emit_.unflatten(received, source_, out);
    return put_together(emit_, tiles, out);
  }

  /// Pieces travel dense: their elements count from zero, run after run.
  static Overlap moved_to_piece(Overlap place) {
    for (auto& runs : place.runs) {
      int64_t at = 0;
      for (Run& run : runs) {
        run.from = at;
        at += run.length;
      }
    }
    return place;
  }

  Emitter& emit_;
  const Step& step_;
  GroupMembers members_;
  ValueId source_{};  // of an all_to_all: its symbolic sizes are the result's
};

/// Backends carry neither truth values nor rare types: bytes of the same width stand in.
std::optional<DType> stand_in(DType dtype) {
  switch (dtype) {
    case DType::boolean:
    case DType::f8_e5m2:
    case DType::f8_e4m3fn:
    case DType::f8_e5m2fnuz:
    case DType::f8_e4m3fnuz:
    case DType::f8_e8m0fnu:
      return DType::u8;
    case DType::i16:
    case DType::u16:
      return DType::f16;
    case DType::u32:
      return DType::i32;
    case DType::u64:
    case DType::c64:
      return DType::i64;
    default:
      return std::nullopt;
  }
}

bool reduces(Move move) { return move == Move::all_reduce || move == Move::reduce_scatter; }

void check_dtype(DType dtype, const Step& step) {
  const bool odd = stand_in(dtype).has_value() || dtype == DType::c128 || dtype == DType::c32;
  const bool moves = stand_in(dtype).has_value() && !reduces(step.move);
  if (odd && !moves) {
    throw NotSupported(join_text("no backend of Python's functional collectives carries ",
                                 dtype_name(dtype), " tensors in a ", plan::move_name(step.move),
                                 ": ", step.from, " -> ", step.to));
  }
}

ValueId start_step(Emitter& emit, StepWriter& writer, const Step& step, ValueId value) {
  const DType dtype = emit.meta(value).dtype;
  if (!writer.communicates()) return writer.start(value);
  check_dtype(dtype, step);
  if (const auto other = stand_in(dtype)) value = emit.reinterpret(value, *other);
  return writer.start(value);
}

ValueId finish_step(Emitter& emit, StepWriter& writer, ValueId value, DType dtype) {
  value = writer.finish(emit.wait(value));
  return emit.meta(value).dtype == dtype ? value : emit.reinterpret(value, dtype);
}

}  // namespace

bool has_messages(const plan::Plan& plan) {
  return std::ranges::any_of(plan.steps, [](const Step& step) {
    int64_t ranks = 1;
    for (const int axis : step.axes) ranks *= step.from.mesh().size(axis);
    return !plan::is_local(step.move) && ranks > 1;
  });
}

Finish start_plan(Emitter& emit, const plan::Plan& plan, ValueId value) {
  const DType dtype = emit.meta(value).dtype;
  size_t last = plan.steps.size();  // the last step with messages
  for (size_t i = 0; i < plan.steps.size(); ++i) {
    if (StepWriter(emit, plan.steps[i]).communicates()) last = i;
  }
  const auto run = [&emit, dtype](const Step& step, ValueId in) {
    StepWriter writer(emit, step);
    const ValueId out = start_step(emit, writer, step, in);
    return writer.communicates() ? finish_step(emit, writer, out, dtype) : out;
  };
  if (last == plan.steps.size()) {
    // Local steps cost nothing to delay, and what they make is held for less long.
    return [run, steps = plan.steps, value]() {
      ValueId out = value;
      for (const Step& step : steps) out = run(step, out);
      return out;
    };
  }
  for (size_t i = 0; i < last; ++i) value = run(plan.steps[i], value);
  auto step = std::make_shared<Step>(plan.steps[last]);
  auto writer = std::make_shared<StepWriter>(emit, *step);
  const ValueId started = start_step(emit, *writer, *step, value);
  std::vector<Step> after(plan.steps.begin() + static_cast<std::ptrdiff_t>(last) + 1,
                          plan.steps.end());
  return [&emit, run, step, writer, started, dtype, after = std::move(after)]() {
    ValueId out = finish_step(emit, *writer, started, dtype);
    for (const Step& next : after) out = run(next, out);
    return out;
  };
}

}  // namespace tessera::partition
