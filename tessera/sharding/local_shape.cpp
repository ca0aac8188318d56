#include "tessera/sharding/local_shape.h"

#include <algorithm>
#include <numeric>

#include "tessera/base/errors.h"
#include "tessera/base/iota_vector.h"
#include "tessera/base/shape.h"
#include "tessera/sharding/dim_intervals.h"

namespace tessera {
namespace {

/// Appends the range [begin, end), counted along `intervals`, to `out`.
void append_stretch(std::span<const Interval> intervals, Interval stretch,
                    std::vector<Interval>& out) {
  int64_t at = 0;
  for (const auto& interval : intervals) {
    const int64_t from = std::max(stretch.begin, at);
    const int64_t to = std::min(stretch.end, at + interval.size());
    if (from < to) {
      const Interval piece{interval.begin + (from - at), interval.begin + (to - at)};
      if (!out.empty() && out.back().end == piece.begin) {
        out.back().end = piece.end;
      } else {
        out.push_back(piece);
      }
    }
    at += interval.size();
  }
}

void check_coordinate(const Sharding& sharding, std::span<const int> coordinate) {
  sharding.mesh().rank_at(coordinate);  // throws for an invalid coordinate
}

/// Whether the rank at coordinate 0 holds the most of a dim. Chunks are largest first, also when
/// nested. Ragged tables need not be, and an inner strided shard may give less of more: SS0(4) over
/// 2 gives the first rank 4 of 4 but 3 of 5.
bool first_holds_most(const Sharding& sharding, std::span<const int> axes) {
  for (size_t level = 0; level < axes.size(); ++level) {
    const Placement& p = sharding.placement(axes[level]);
    const bool outer_strided = level == 0 && p.kind() == Placement::Kind::strided;
    if (!p.is_plain_shard() && !outer_strided) return false;
  }
  return true;
}

}  // namespace

Interval chunk_interval(int64_t n, int64_t count, int64_t index) {
  const int64_t full = n / count + (n % count != 0 ? 1 : 0);
  const int64_t begin = std::min(index * full, n);
  return {begin, begin + std::min(full, n - begin)};
}

int64_t total_size(std::span<const Interval> intervals) {
  int64_t n = 0;
  for (const auto& interval : intervals) n += interval.size();
  return n;
}

std::vector<Interval> dim_intervals(int64_t n, std::span<const DimShard> shards) {
  std::vector<Interval> held;
  if (n > 0) held.push_back({0, n});
  int64_t outer_index = 0;  // index of the outer piece, for ragged tables
  for (const auto& s : shards) {
    const int64_t length = total_size(held);
    std::vector<Interval> next;
    switch (s.placement->kind()) {
      case Placement::Kind::shard:
        append_stretch(held, chunk_interval(length, s.axis_size, s.coordinate), next);
        break;
      case Placement::Kind::strided:
        for (int64_t piece = 0; piece < s.placement->split(); ++piece) {
          const Interval whole = chunk_interval(length, s.placement->split(), piece);
          if (whole.size() == 0) break;  // so are all after it
          const Interval part = chunk_interval(whole.size(), s.axis_size, s.coordinate);
          append_stretch(held, {whole.begin + part.begin, whole.begin + part.end}, next);
        }
        break;
      case Placement::Kind::ragged: {
        const auto table = s.placement->sizes().subspan(
            static_cast<size_t>(outer_index * s.axis_size), static_cast<size_t>(s.axis_size));
        const int64_t begin =
            std::accumulate(table.begin(), table.begin() + s.coordinate, static_cast<int64_t>(0));
        append_stretch(held, {begin, begin + table[static_cast<size_t>(s.coordinate)]}, next);
        break;
      }
      default:
        ensure(false, "a placement other than a shard cannot split a dim");
    }
    held = std::move(next);
    outer_index = outer_index * s.axis_size + s.coordinate;
  }
  return held;
}

std::vector<DimShard> shards_of_dim(const DeviceMesh& mesh, std::span<const Placement> placements,
                                    std::span<const int> axes, std::span<const int> coordinate) {
  std::vector<DimShard> shards;
  shards.reserve(axes.size());
  for (int axis : axes) {
    shards.push_back({&placements[static_cast<size_t>(axis)], mesh.size(axis),
                      coordinate[static_cast<size_t>(axis)]});
  }
  return shards;
}

std::vector<Interval> held_intervals(const Sharding& sharding, int dim,
                                     std::span<const int> coordinate) {
  const auto axes = sharding.axes_of_dim(dim);
  check_coordinate(sharding, coordinate);
  return dim_intervals(sharding.shape()[static_cast<size_t>(dim)],
                       shards_of_dim(sharding.mesh(), sharding.placements(), axes, coordinate));
}

std::vector<int64_t> local_shape(const Sharding& sharding, std::span<const int> coordinate) {
  check_coordinate(sharding, coordinate);
  std::vector<int64_t> out(sharding.shape().begin(), sharding.shape().end());
  for (int dim = 0; dim < sharding.ndim(); ++dim) {
    if (sharding.axes_of_dim(dim).empty()) continue;
    out[static_cast<size_t>(dim)] = total_size(held_intervals(sharding, dim, coordinate));
  }
  return out;
}

int64_t local_numel(const Sharding& sharding, std::span<const int> coordinate) {
  return numel_of(local_shape(sharding, coordinate));
}

std::vector<int64_t> global_offset(const Sharding& sharding, std::span<const int> coordinate) {
  check_coordinate(sharding, coordinate);
  std::vector<int64_t> out(static_cast<size_t>(sharding.ndim()), 0);
  for (int dim = 0; dim < sharding.ndim(); ++dim) {
    if (sharding.axes_of_dim(dim).empty()) continue;
    const auto held = held_intervals(sharding, dim, coordinate);
    const auto d = static_cast<size_t>(dim);
    out[d] = held.empty() ? sharding.shape()[d] : held.front().begin;
  }
  return out;
}

std::vector<int64_t> local_stride(std::span<const int64_t> local_shape,
                                  std::span<const int64_t> global_stride) {
  std::vector<size_t> nesting = iota_vector(local_shape.size());
  // Innermost first; of equal strides (size-1 dims) the later dim is the inner one, as row-major.
  std::ranges::stable_sort(nesting, [&](size_t a, size_t b) {
    return global_stride[a] != global_stride[b] ? global_stride[a] < global_stride[b] : a > b;
  });
  std::vector<int64_t> out(local_shape.size(), 0);
  int64_t stride = 1;
  for (size_t dim : nesting) {
    if (global_stride[dim] == 0) continue;
    out[dim] = stride;
    stride *= std::max<int64_t>(local_shape[dim], 1);
  }
  return out;
}

std::vector<int64_t> max_local_shape(const Sharding& sharding) {
  std::vector<int64_t> most(sharding.shape().begin(), sharding.shape().end());
  const auto& mesh = sharding.mesh();
  for (int dim = 0; dim < sharding.ndim(); ++dim) {
    const auto axes = sharding.axes_of_dim(dim);
    if (axes.empty()) continue;
    int64_t count = 1;
    if (!first_holds_most(sharding, axes)) {
      for (int axis : axes) count *= mesh.size(axis);
    }
    int64_t largest = 0;
    for (int64_t i = 0; i < count; ++i) {
      Coordinate coordinate(static_cast<size_t>(mesh.ndim()), 0);
      int64_t rest = i;
      for (int axis : axes) {
        coordinate[static_cast<size_t>(axis)] = static_cast<int>(rest % mesh.size(axis));
        rest /= mesh.size(axis);
      }
      largest = std::max(largest, total_size(held_intervals(sharding, dim, coordinate)));
    }
    most[static_cast<size_t>(dim)] = largest;
  }
  return most;
}

int64_t max_local_numel(const Sharding& sharding) {
  // An axis shards at most one dim, so some rank has the largest part of every dim.
  return numel_of(max_local_shape(sharding));
}

}  // namespace tessera
