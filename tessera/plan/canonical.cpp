#include "tessera/plan/canonical.h"

#include <algorithm>
#include <numeric>

#include "tessera/plan/extent.h"
#include "tessera/sharding/local_shape.h"

namespace tessera::plan {
namespace {

struct AxisLevel : Level {
  int axis;

  bool is(Placement::Kind kind) const { return placement->kind() == kind; }
};

/// Whether a ragged table equals torch.chunk; each row of it sums to one outer piece.
bool equals_chunk(const Placement& ragged, int64_t ranks) {
  const auto sizes = ragged.sizes();
  for (size_t row = 0; row < sizes.size(); row += static_cast<size_t>(ranks)) {
    const auto table = sizes.subspan(row, static_cast<size_t>(ranks));
    const int64_t piece = std::accumulate(table.begin(), table.end(), static_cast<int64_t>(0));
    for (int64_t i = 0; i < ranks; ++i) {
      if (table[static_cast<size_t>(i)] != chunk_interval(piece, ranks, i).size()) return false;
    }
  }
  return true;
}

/// The size of every piece of a dim of n after the levels, if all are equal; else -1.
int64_t even_piece(int64_t n, std::span<const AxisLevel> levels) {
  for (const auto& level : levels) {
    const bool ragged = level.is(Placement::Kind::ragged);
    if (ragged || n % (level.ranks * level.placement->split()) != 0) return -1;
    n /= level.ranks;
  }
  return n;
}

/// A strided shard of `split` pieces followed by plain shards into `split`: each of those selects
/// one of the pieces, so they are equivalent to sharding first, with a plain shard inside.
void unstride(int64_t n, std::vector<AxisLevel>& levels, size_t at, const Placement& plain) {
  const int64_t split = levels[at].placement->split();
  const int64_t piece = even_piece(n, std::span<const AxisLevel>(levels).first(at));
  if (piece < 0 || piece % (split * levels[at].ranks) != 0) return;
  int64_t inside = 1;
  size_t end = at + 1;
  while (inside < split && end < levels.size() && levels[end].placement->is_plain_shard()) {
    inside *= levels[end++].ranks;
  }
  if (inside != split) return;
  // A ragged table further inside counts the outer pieces in nesting order.
  const auto is_ragged = [](const AxisLevel& level) { return level.is(Placement::Kind::ragged); };
  if (std::ranges::any_of(std::span<const AxisLevel>(levels).subspan(end), is_ragged)) return;
  levels[at].placement = &plain;
  const auto first = levels.begin() + static_cast<std::ptrdiff_t>(at);
  std::rotate(first, first + 1, levels.begin() + static_cast<std::ptrdiff_t>(end));
}

bool is_plain(const Sharding& sharding) {
  for (int axis = 0; axis < sharding.mesh().ndim(); ++axis) {
    const Placement& p = sharding.placement(axis);
    const bool irregular = p.is_sharded() && !p.is_plain_shard();
    if (irregular || (sharding.mesh().size(axis) == 1 && !p.is_replicate())) return false;
  }
  return true;
}

}  // namespace

Sharding canonical(const Sharding& sharding) {
  if (is_plain(sharding)) return sharding;
  const auto& mesh = sharding.mesh();
  std::vector<Placement> placements;  // empty while unchanged: tables may be large
  std::vector<int> order;
  const auto change = [&](int axis, const Placement& placement) {
    if (placements.empty()) {
      placements.assign(sharding.placements().begin(), sharding.placements().end());
    }
    placements[static_cast<size_t>(axis)] = placement;
  };
  for (int axis = 0; axis < mesh.ndim(); ++axis) {
    if (mesh.size(axis) == 1 && !sharding.placement(axis).is_replicate()) change(axis, Replicate());
  }
  for (int dim = 0; dim < sharding.ndim(); ++dim) {
    const Placement plain = Shard(dim);
    std::vector<AxisLevel> levels;
    for (int axis : sharding.axes_of_dim(dim)) {
      if (mesh.size(axis) == 1) continue;
      levels.push_back({{&sharding.placement(axis), mesh.size(axis)}, axis});
      AxisLevel& level = levels.back();
      if (level.is(Placement::Kind::ragged) && equals_chunk(*level.placement, level.ranks)) {
        level.placement = &plain;
      }
    }
    for (size_t at = levels.size(); at-- > 0;) {
      if (levels[at].is(Placement::Kind::strided)) {
        unstride(sharding.shape()[static_cast<size_t>(dim)], levels, at, plain);
      }
    }
    for (const auto& level : levels) {
      const Placement& before = sharding.placement(level.axis);
      if (level.placement != &before) change(level.axis, *level.placement);
      order.push_back(level.axis);
    }
  }
  // Axes are only exchanged with axes that change as well.
  if (placements.empty()) return sharding;
  return sharding.with_placements(std::move(placements), std::move(order));
}

}  // namespace tessera::plan
