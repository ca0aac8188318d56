#include "tessera/plan/extent.h"

#include <algorithm>
#include <vector>

#include "tessera/sharding/local_shape.h"

namespace tessera::plan {
namespace {

/// What rank `rank` gets of a piece of n; `outer` counts the pieces in cutting order.
int64_t part(int64_t n, const Level& cut, int64_t rank, size_t outer) {
  switch (cut.placement.kind()) {
    case Placement::Kind::strided: {
      int64_t sum = 0;
      for (int64_t i = 0; i < cut.placement.split(); ++i) {
        const int64_t piece = chunk(n, cut.placement.split(), i).size();
        if (piece == 0) break;
        sum += chunk(piece, cut.ranks, rank).size();
      }
      return sum;
    }
    case Placement::Kind::ragged:
      return cut.placement
          .sizes()[outer * static_cast<size_t>(cut.ranks) + static_cast<size_t>(rank)];
    default:
      return chunk(n, cut.ranks, rank).size();
  }
}

}  // namespace

int64_t largest_extent(int64_t n, std::span<const Level> cuts) {
  size_t last_ragged = 0;  // one past the last ragged cut: up to there every piece counts
  for (size_t i = 0; i < cuts.size(); ++i) {
    if (cuts[i].placement.kind() == Placement::Kind::ragged) last_ragged = i + 1;
  }
  std::vector<int64_t> pieces{n};
  for (size_t i = 0; i < cuts.size(); ++i) {
    std::vector<int64_t> next;
    for (size_t outer = 0; outer < pieces.size(); ++outer) {
      for (int64_t rank = 0; rank < cuts[i].ranks; ++rank) {
        next.push_back(part(pieces[outer], cuts[i], rank, outer));
      }
    }
    if (i + 1 >= last_ragged) {
      // From here on only the different sizes matter; they are few.
      std::ranges::sort(next);
      next.erase(std::ranges::unique(next).begin(), next.end());
    }
    pieces = std::move(next);
  }
  return *std::ranges::max_element(pieces);
}

}  // namespace tessera::plan
