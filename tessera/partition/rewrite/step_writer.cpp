#include "tessera/partition/rewrite/step_writer.h"

#include <algorithm>

#include "tessera/base/errors.h"
#include "tessera/base/shape.h"
#include "tessera/partition/graph/sizes.h"
#include "tessera/partition/rewrite/tiles.h"
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
      const SharedRun& run = place.runs[d][0];
      const int64_t begin = from_side ? run.from : run.to;
      if (begin != (d == 0 ? row : 0)) return false;
      if (d > 0 && run.length != shape[d]) return false;
    }
    if (place.runs.empty()) return false;
    row += place.runs[0][0].length;
  }
  return row == shape[0];
}

}  // namespace

StepWriter::StepWriter(Emitter& emit, const Step& step) : emit_(emit), step_(step) {
  const DeviceMesh& mesh = step.from.mesh();
  members_ = members_of(mesh, step.axes, mesh.my_rank().value());
}

ValueId StepWriter::start(ValueId x) {
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

ValueId StepWriter::finish(ValueId x) {
  if (step_.move == Move::all_gather) x = finish_gather(x);
  if (step_.move == Move::reduce_scatter) {
    x = take(emit_, x, whole_of(local_shape(step_.to, me())));
  }
  if (step_.move == Move::all_to_all) x = finish_exchange(x);
  const int64_t averaged = averaged_ranks();
  return averaged == 1 ? x : emit_.multiply(x, 1.0 / static_cast<double>(averaged));
}

StepWriter::Shapes StepWriter::shapes_of(const Sharding& sharding) const {
  Shapes out;
  for (const auto& member : members_.coordinates) out.push_back(local_shape(sharding, member));
  return out;
}

ReduceOp StepWriter::reduce_op() const {
  for (const int axis : step_.axes) {
    const Placement& p = step_.from.placement(axis);
    if (p.is_partial()) return p.reduce_op() == ReduceOp::avg ? ReduceOp::sum : p.reduce_op();
  }
  return ReduceOp::sum;
}

int64_t StepWriter::averaged_ranks() const {
  if (plan::is_local(step_.move)) return 1;
  int64_t n = 1;
  for (const int axis : step_.axes) {
    const Placement& p = step_.from.placement(axis);
    if (p.is_partial() && p.reduce_op() == ReduceOp::avg) n *= step_.from.mesh().size(axis);
  }
  return n;
}

double StepWriter::rescale_factor() const {
  double factor = 1;
  for (const int axis : step_.axes) {
    const auto n = static_cast<double>(step_.to.mesh().size(axis));
    factor *= step_.to.placement(axis).reduce_op() == ReduceOp::avg ? n : 1 / n;
  }
  return factor;
}

/// The value is kept by the first rank where the reduction would count it again, else by all.
ValueId StepWriter::keep_one(ValueId x) {
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

ValueId StepWriter::start_gather(ValueId x) {
  const Shapes shapes = shapes_of(step_.from);
  return emit_.all_gather(emit_.pad(x, bounding_shape(shapes)), ranks(), members_.name);
}

/// Where the parts of all members are in the result.
std::vector<Overlap> StepWriter::gathered_places() const {
  std::vector<Overlap> out;
  for (const auto& member : members_.coordinates) {
    out.push_back(overlap(step_.from, member, step_.to, me()));
  }
  return out;
}

ValueId StepWriter::finish_gather(ValueId gathered) {
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

ValueId StepWriter::start_scatter(ValueId x) {
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

StepWriter::Exchange StepWriter::exchange() const {
  Exchange out;
  Shapes shapes;
  for (const auto& peer : members_.coordinates) {
    out.to_peer.push_back(overlap(step_.from, me(), step_.to, peer));
    out.from_peer.push_back(overlap(step_.from, peer, step_.to, me()));
    shapes.push_back(out.to_peer.back().shape());
    shapes.push_back(out.from_peer.back().shape());
  }
  // Every rank must decide alike, so all pairs count.
  out.even = true;
  for (const auto& a : members_.coordinates) {
    for (const auto& b : members_.coordinates) {
      out.even &= overlap(step_.from, a, step_.to, b).shape() == shapes[0];
    }
  }
  return out;
}

ValueId StepWriter::start_exchange(ValueId x) {
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
    send.push_back(emit_.count(x, pieces.to_peer[m].shape()));
    receive.push_back(count_of(x, pieces.from_peer[m]));
  }
  const auto out = local_shape(step_.to, me());
  rows = flat_size(x, out);
  return emit_.all_to_all(emit_.cat(parts, 0), receive, send, rows, members_.name);
}

/// Sizes of dims that are not of x: a dim that I hold a part of, elsewhere in another part. Those
/// dims are numbers where parts are uneven; a symbolic dim has the same share of x everywhere.
IntOrValue StepWriter::count_of(ValueId x, const Overlap& place) {
  return emit_.count(x, place.shape());
}

Size StepWriter::flat_size(ValueId x, std::span<const int64_t> shape) const {
  Size out = 1;
  for (size_t d = 0; d < shape.size(); ++d) {
    out = multiply(out, part_of(emit_.meta(x).sizes[d], shape[d]));
  }
  return out;
}

ValueId StepWriter::finish_exchange(ValueId received) {
  const Exchange pieces = exchange();
  const auto out = local_shape(step_.to, me());
  std::vector<Tile> tiles;
  if (pieces.even) {
    if (stacked_in_order(pieces.from_peer, out, false)) return received;
    const int64_t rows = hint_of(emit_.meta(received).sizes[0]) / ranks();
    for (size_t m = 0; m < members_.size(); ++m) {
      const auto first = static_cast<int64_t>(m) * rows;
      tiles.push_back(
          {emit_.slice(received, 0, {first, first + rows}), pieces.from_peer[m].from_piece()});
    }
    return put_together(emit_, tiles, out);
  }
  int64_t at = 0;
  for (const Overlap& place : pieces.from_peer) {
    const auto shape = place.shape();
    const int64_t n = numel_of(shape);
    if (n == 0) continue;
    const ValueId flat = emit_.slice(received, 0, {at, at + n});
    tiles.push_back({emit_.unflatten(flat, source_, shape), place.from_piece()});
    at += n;
  }
  if (tiles.empty()) return emit_.unflatten(received, source_, out);
  return put_together(emit_, tiles, out);
}

}  // namespace tessera::partition
