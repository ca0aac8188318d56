#include "tessera/partition/rewrite/tiles.h"

#include <algorithm>
#include <set>

#include "tessera/base/errors.h"
#include "tessera/partition/graph/sizes.h"

namespace tessera::partition {
namespace {

using program::ValueId;

int64_t size_of(const Emitter& emit, ValueId value, int dim) {
  return hint_of(emit.meta(value).sizes[static_cast<size_t>(dim)]);
}

ValueId slice_unless_whole(Emitter& emit, ValueId value, int dim, Emitter::Span span) {
  if (span.begin == 0 && span.end == size_of(emit, value, dim)) return value;
  return emit.slice(value, dim, span);
}

/// Puts tiles together dim by dim: the borders of all tiles along a dim split it into stretches,
/// each of which is made from the remaining dims, and the stretches are joined.
class Mosaic {
 public:
  Mosaic(Emitter& emit, std::span<const Tile> tiles, std::span<const int64_t> shape)
      : emit_(emit), tiles_(tiles), borders_(shape.size()), box_(shape.size()) {
    for (size_t d = 0; d < shape.size(); ++d) {
      std::set<int64_t> borders = {0, shape[d]};
      for (const Tile& tile : tiles) {
        for (const SharedRun& run : tile.place.runs[d]) {
          borders.insert(run.to);
          borders.insert(run.to + run.length);
        }
      }
      borders_[d].assign(borders.begin(), borders.end());
    }
  }

  ValueId join(size_t dim) {
    if (dim == borders_.size()) return piece();
    std::vector<ValueId> parts;
    const auto& borders = borders_[dim];
    for (size_t i = 0; i + 1 < std::max(borders.size(), size_t{2}); ++i) {
      box_[dim] = {borders[i], borders[std::min(i + 1, borders.size() - 1)]};
      parts.push_back(join(dim + 1));
    }
    return emit_.cat(parts, static_cast<int>(dim));
  }

 private:
  /// The run of a dim that covers the box there.
  const SharedRun* covering(const std::vector<SharedRun>& runs, size_t dim) const {
    const auto found = std::ranges::find_if(runs, [&](const SharedRun& run) {
      return run.to <= box_[dim].begin && box_[dim].end <= run.to + run.length;
    });
    return found == runs.end() ? nullptr : &*found;
  }

  ValueId piece() {
    for (const Tile& tile : tiles_) {
      std::vector<const SharedRun*> runs;
      for (size_t d = 0; d < box_.size(); ++d) runs.push_back(covering(tile.place.runs[d], d));
      if (std::ranges::find(runs, nullptr) != runs.end()) continue;
      ValueId value = tile.value;
      for (size_t d = 0; d < box_.size(); ++d) {
        const int64_t shift = runs[d]->from - runs[d]->to;
        value = slice_unless_whole(emit_, value, static_cast<int>(d),
                                   {box_[d].begin + shift, box_[d].end + shift});
      }
      return value;
    }
    ensure(false, "tiles leave a part of the tensor open");
    return {};
  }

  Emitter& emit_;
  std::span<const Tile> tiles_;
  std::vector<std::vector<int64_t>> borders_;
  std::vector<Emitter::Span> box_;
};

}  // namespace

ValueId take(Emitter& emit, ValueId from, const Overlap& place) {
  ValueId value = from;
  for (size_t d = 0; d < place.runs.size(); ++d) {
    const int dim = static_cast<int>(d);
    const auto& runs = place.runs[d];
    std::vector<ValueId> parts;
    for (const SharedRun& run : runs) {
      parts.push_back(slice_unless_whole(emit, value, dim, {run.from, run.from + run.length}));
    }
    value = runs.empty() ? slice_unless_whole(emit, value, dim, {0, 0}) : emit.cat(parts, dim);
  }
  return value;
}

ValueId put_together(Emitter& emit, std::span<const Tile> tiles, std::span<const int64_t> shape) {
  return Mosaic(emit, tiles, shape).join(0);
}

}  // namespace tessera::partition
