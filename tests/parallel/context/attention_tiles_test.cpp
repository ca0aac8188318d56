#include "tessera/parallel/context/attention_tiles.h"

#include <gtest/gtest.h>

#include <random>

namespace tessera::parallel {
namespace attention_tiles_test {

using Intervals = std::vector<Interval>;

TEST(AttentionTiles, WithoutAMaskABlockIsOneTile) {
  const Intervals queries = {{4, 8}, {12, 14}}, keys = {{0, 3}};
  EXPECT_EQ(attention_tiles({.queries = queries, .keys = keys}),
            (std::vector<Tile>{{{0, 6}, {0, 3}}}));
}

TEST(AttentionTiles, OwnRowsAreOneDiagonalTile) {
  const Intervals rows = {{0, 4}, {12, 16}};
  EXPECT_EQ(attention_tiles({.queries = rows, .keys = rows, .causal = true}),
            (std::vector<Tile>{{{0, 8}, {0, 8}, true}}));
}

TEST(AttentionTiles, HeadTailBlocksOfOthersAreOneFullTile) {
  const Intervals mine = {{4, 8}, {8, 12}}, outer = {{0, 4}, {12, 16}};
  EXPECT_EQ(attention_tiles({.queries = mine, .keys = outer, .causal = true}),
            (std::vector<Tile>{{{0, 8}, {0, 4}}}));
  EXPECT_EQ(attention_tiles({.queries = outer, .keys = mine, .causal = true}),
            (std::vector<Tile>{{{4, 8}, {0, 8}}}));
}

TEST(AttentionTiles, NothingIsSeenOfTheFuture) {
  const Intervals early = {{0, 4}}, late = {{4, 8}};
  EXPECT_TRUE(attention_tiles({.queries = early, .keys = late, .causal = true}).empty());
}

/// Every allowed pair is in exactly one tile, and no other pair is.
TEST(AttentionTiles, CoverEachAllowedPairOnce) {
  for (unsigned seed = 0; seed < 200; ++seed) {
    std::mt19937 random(seed);
    const auto below = [&](int64_t n) { return static_cast<int64_t>(random() % n); };
    const int64_t length = 1 + below(30);
    const auto some_rows = [&] {
      Intervals rows;
      for (int64_t at = below(6); at < length; at += below(6)) {
        const int64_t end = std::min(length, at + 1 + below(6));
        rows.push_back({at, end});
        at = end;
      }
      std::shuffle(rows.begin(), rows.end(), random);
      return rows;
    };
    const Intervals queries = some_rows(), keys = some_rows();
    DocumentOffsets documents;
    if (below(2) == 0) {
      documents = {0, below(length + 1), length};
    }
    const bool causal = below(2) == 0;
    const auto document = [&](int64_t p) {
      return documents.empty() ? 0 : static_cast<int>(p >= documents[1]);
    };
    std::vector<int64_t> q_at, k_at;
    for (const Interval& i : queries)
      for (int64_t p = i.begin; p < i.end; ++p) q_at.push_back(p);
    for (const Interval& i : keys)
      for (int64_t p = i.begin; p < i.end; ++p) k_at.push_back(p);
    std::vector<std::vector<int>> count(q_at.size(), std::vector<int>(k_at.size(), 0));
    const std::vector<DocumentOffsets> all = {documents};
    for (const Tile& tile :
         attention_tiles({.queries = queries, .keys = keys, .causal = causal, .documents = all})) {
      for (int64_t q = tile.queries.begin; q < tile.queries.end; ++q) {
        for (int64_t k = tile.keys.begin; k < tile.keys.end; ++k) {
          const bool seen = !tile.diagonal || k - tile.keys.begin <= q - tile.queries.begin;
          if (seen) ++count[static_cast<size_t>(q)][static_cast<size_t>(k)];
        }
      }
    }
    for (size_t q = 0; q < q_at.size(); ++q) {
      for (size_t k = 0; k < k_at.size(); ++k) {
        const bool allowed =
            (!causal || k_at[k] <= q_at[q]) && document(q_at[q]) == document(k_at[k]);
        ASSERT_EQ(count[q][k], allowed ? 1 : 0) << "seed " << seed;
      }
    }
  }
}

}  // namespace attention_tiles_test
}  // namespace tessera::parallel
