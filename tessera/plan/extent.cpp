#include "tessera/plan/extent.h"

#include <algorithm>
#include <vector>

#include "tessera/sharding/local_shape.h"

namespace tessera::plan {
namespace {

bool is_kind(const Level& level, Placement::Kind kind) { return level.placement->kind() == kind; }

/// What rank `rank` gets of a piece of n; a plain shard is a strided one with a single split.
int64_t part(int64_t n, const Level& level, int64_t rank) {
  const int64_t split = level.placement->split();
  int64_t sum = 0;
  for (int64_t i = 0; i < split; ++i) {
    const int64_t piece = chunk_interval(n, split, i).size();
    if (piece == 0) break;
    sum += chunk_interval(piece, level.ranks, rank).size();
  }
  return sum;
}

void keep_different(std::vector<int64_t>& sizes) {
  std::ranges::sort(sizes);
  sizes.erase(std::ranges::unique(sizes).begin(), sizes.end());
}

}  // namespace

int64_t largest_extent(int64_t n, std::span<const Level> levels) {
  std::vector<int64_t> pieces{n};
  size_t next = 0;
  size_t past_strided = 0;
  for (size_t i = 0; i < levels.size(); ++i) {
    if (is_kind(levels[i], Placement::Kind::strided)) past_strided = i + 1;
    if (!is_kind(levels[i], Placement::Kind::ragged)) continue;
    // Its table lists all current pieces, whatever came before.
    const auto table = levels[i].placement->sizes();
    pieces.assign(table.begin(), table.end());
    next = i + 1;
  }
  // A strided shard may leave more of a smaller piece, so all sizes are tracked up to there; they
  // are few.
  for (; next < past_strided; ++next) {
    keep_different(pieces);
    std::vector<int64_t> parts;
    for (const int64_t piece : pieces) {
      for (int64_t rank = 0; rank < levels[next].ranks; ++rank) {
        parts.push_back(part(piece, levels[next], rank));
      }
    }
    pieces = std::move(parts);
  }
  int64_t most = *std::ranges::max_element(pieces);
  for (; next < levels.size(); ++next) most = chunk_interval(most, levels[next].ranks, 0).size();
  return most;
}

}  // namespace tessera::plan
