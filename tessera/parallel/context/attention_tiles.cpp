#include "tessera/parallel/context/attention_tiles.h"

#include <algorithm>
#include <set>

#include "tessera/sharding/dim_intervals.h"

namespace tessera::parallel {
namespace {

/// Rows of one interval of positions within one document.
struct Piece {
  Interval positions;
  Interval rows;
  int64_t document = 0;
};

void add_bounds(std::set<int64_t>& bounds, std::span<const Interval> intervals) {
  for (const Interval& part : intervals) {
    bounds.insert(part.begin);
    bounds.insert(part.end);
  }
}

int64_t document_of(const DocumentOffsets& documents, int64_t position) {
  return std::ranges::upper_bound(documents, position) - documents.begin();
}

std::vector<Piece> pieces_of(std::span<const Interval> intervals, const std::set<int64_t>& bounds,
                             const DocumentOffsets& documents) {
  std::vector<Piece> pieces;
  int64_t row = 0;
  for (const Interval& part : intervals) {
    int64_t begin = part.begin;
    while (begin < part.end) {
      const auto bound = bounds.upper_bound(begin);
      const int64_t end = bound == bounds.end() ? part.end : std::min(*bound, part.end);
      pieces.push_back({{begin, end}, {row, row + end - begin}, document_of(documents, begin)});
      row += end - begin;
      begin = end;
    }
  }
  return pieces;
}

/// Joins full tiles that share their queries and whose keys follow each other, or the reverse.
template <class Shared, class Joined>
std::vector<Tile> join_tiles(std::vector<Tile> tiles, Shared shared, Joined joined) {
  std::vector<Tile> out;
  for (const Tile& tile : tiles) {
    bool done = false;
    for (Tile& other : out) {
      if (tile.diagonal || other.diagonal || other.*shared != tile.*shared) continue;
      if ((other.*joined).end != (tile.*joined).begin) continue;
      (other.*joined).end = (tile.*joined).end;
      done = true;
      break;
    }
    if (!done) out.push_back(tile);
  }
  return out;
}

bool ascends(std::span<const Interval> intervals) {
  for (size_t i = 1; i < intervals.size(); ++i) {
    if (intervals[i].begin < intervals[i - 1].end) return false;
  }
  return true;
}

std::vector<Tile> tiles_of_row(const TileProblem& problem, const DocumentOffsets& documents) {
  const Interval all_queries{0, total_size(problem.queries)};
  const Interval all_keys{0, total_size(problem.keys)};
  if (all_queries.size() == 0 || all_keys.size() == 0) return {};
  if (documents.empty() && !problem.causal) return {{all_queries, all_keys}};
  // Rows in ascending order: a causal mask by row is one by position.
  if (documents.empty() && ascends(problem.queries) &&
      std::ranges::equal(problem.queries, problem.keys)) {
    return {{all_queries, all_keys, /*diagonal=*/true}};
  }
  std::set<int64_t> bounds(documents.begin(), documents.end());
  if (problem.causal) {
    add_bounds(bounds, problem.queries);
    add_bounds(bounds, problem.keys);
  }
  const auto queries = pieces_of(problem.queries, bounds, documents);
  const auto keys = pieces_of(problem.keys, bounds, documents);
  std::vector<Tile> tiles;
  for (const Piece& key : keys) {
    for (const Piece& query : queries) {
      if (query.document != key.document) continue;
      if (problem.causal && key.positions.begin > query.positions.begin) continue;
      tiles.push_back(
          {query.rows, key.rows, problem.causal && key.positions.begin == query.positions.begin});
    }
  }
  return join_tiles(join_tiles(std::move(tiles), &Tile::keys, &Tile::queries), &Tile::queries,
                    &Tile::keys);
}

}  // namespace

std::vector<Tile> attention_tiles(const TileProblem& problem) {
  if (problem.documents.size() <= 1) {
    return tiles_of_row(problem,
                        problem.documents.empty() ? DocumentOffsets() : problem.documents[0]);
  }
  std::vector<Tile> out;
  for (size_t row = 0; row < problem.documents.size(); ++row) {
    for (Tile tile : tiles_of_row(problem, problem.documents[row])) {
      tile.batch_row = static_cast<int64_t>(row);
      out.push_back(tile);
    }
  }
  return out;
}

std::vector<Interval> part_of_rows(std::span<const Interval> intervals, Interval rows) {
  std::vector<Interval> out;
  int64_t row = 0;
  for (const Interval& part : intervals) {
    const int64_t first = std::max(rows.begin, row);
    const int64_t last = std::min(rows.end, row + part.size());
    if (first < last) out.push_back({part.begin + first - row, part.begin + last - row});
    row += part.size();
  }
  return out;
}

}  // namespace tessera::parallel
