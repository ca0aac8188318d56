#include "tessera/plan/canonical.h"

#include <gtest/gtest.h>

#include "tessera/plan/extent.h"
#include "tessera/sharding/local_shape.h"
#include "tests/support_pure/expect_error.h"
#include "tests/support_pure/random_problems.h"
#include "tests/support_pure/replay.h"

namespace tessera::plan {
namespace canonical_test {

std::string canonical_text(const std::string& text) {
  return canonical(Sharding::parse(text)).placements_text();
}

TEST(Canonical, LeavesPlainShardingsAlone) {
  for (const auto* text : {"dp=2,tp=4 : S0,R : 8x16", "dp=2,tp=4 : S0#1,S0#0 : 8x16",
                           "dp=2,tp=4 : P(max),S1 : 8x16", "tp=4 : R : scalar"}) {
    const auto sharding = Sharding::parse(text);
    EXPECT_EQ(canonical(sharding), sharding);
  }
}

TEST(Canonical, ReplicatesOverAxesOfOneRank) {
  EXPECT_EQ(canonical_text("a=1,b=2,c=1 : S0,S0,P : 8"), "R,S0,R");
  EXPECT_EQ(canonical_text("a=1,b=2 : S0[8],S0[5,3] : 8"), "R,S0[5,3]");
}

TEST(Canonical, MakesShardsOfRaggedOnesThatChunkAlike) {
  EXPECT_EQ(canonical_text("tp=3 : S0[3,3,1] : 7"), "S0");
  EXPECT_EQ(canonical_text("tp=3 : S0[3,2,2] : 7"), "S0[3,2,2]");
  EXPECT_EQ(canonical_text("dp=2,tp=2 : S0,S0[2,2,2,1] : 7"), "S0,S0");
  EXPECT_EQ(canonical_text("dp=2,tp=2 : S0[1,6],S0[1,0,3,3] : 7"), "S0[1,6],S0");
  EXPECT_EQ(canonical_text("tp=4 : S0[1,1,0,0] : 2"), "S0");
}

TEST(Canonical, MakesAnOrderOfStridedShardsThatDivide) {
  EXPECT_EQ(canonical_text("dp=2,tp=2 : SS0(2),S0 : 8"), "S0#1,S0#0");
  EXPECT_EQ(canonical_text("dp=2,tp=2 : SS0(2),S0 : 6"), "SS0(2),S0");  // 3,3 over 2
  EXPECT_EQ(canonical_text("dp=2,tp=2 : SS0(2),S1 : 8x8"), "SS0(2),S1");
  EXPECT_EQ(canonical_text("dp=2,tp=4 : SS0(2),S0 : 16"), "SS0(2),S0");
  EXPECT_EQ(canonical_text("a=2,b=3,c=2 : SS0(6),S0,S0 : 24"), "S0#2,S0#0,S0#1");
  EXPECT_EQ(canonical_text("a=2,b=3,c=2 : SS0(3),S0,S0 : 24"), "S0#1,S0#0,S0#2");
  EXPECT_EQ(canonical_text("a=2,b=3,c=2 : SS0(6),SS0(2),S0 : 24"), "S0#2,S0#1,S0#0");
  EXPECT_EQ(canonical_text("a=2,b=3,c=2 : S0,SS0(2),S0 : 24"), "S0#0,S0#2,S0#1");
  // A ragged table inside counts the pieces in the order in which they are sharded.
  EXPECT_EQ(canonical_text("a=2,b=2,c=2 : SS0(2),S0,S0[1,1,2,0,1,1,0,2] : 8"),
            "SS0(2),S0,S0[1,1,2,0,1,1,0,2]");
}

TEST(Canonical, HoldsTheSameOnEveryRank) {
  test::for_each_seed(5000, [](test::Rng& rng) {
    const auto p = rng.chance(50)
                       ? test::random_problem(rng)
                       : test::dense_problem(rng, {.axes = rng.int_between(1, 3), .dims = 2});
    EXPECT_TRUE(test::same_parts(p.from, canonical(p.from))) << p.from.to_text();
    EXPECT_EQ(canonical(canonical(p.from)), canonical(p.from));
  });
}

TEST(Extent, IsTheMostThatARankHolds) {
  const Placement plain = Shard(0);
  const Placement two = StridedShard(0, 2);
  const Placement three = StridedShard(0, 3);
  const Placement ragged = RaggedShard(0, {1, 7, 2});
  using Levels = std::vector<Level>;
  EXPECT_EQ(largest_extent(10, {}), 10);
  EXPECT_EQ(largest_extent(0, Levels{{&plain, 4}}), 0);
  EXPECT_EQ(largest_extent(10, Levels{{&plain, 4}}), 3);
  EXPECT_EQ(largest_extent(10, Levels{{&two, 4}}), 4);
  EXPECT_EQ(largest_extent(10, Levels{{&ragged, 3}}), 7);
  EXPECT_EQ(largest_extent(10, Levels{{&ragged, 3}, {&plain, 2}}), 4);
  // The larger of two outer pieces need not leave more: 4 and 3 as 2+2 and 1+1+1 over two ranks.
  EXPECT_EQ(largest_extent(7, Levels{{&plain, 2}, {&three, 2}}), 3);
}

TEST(Extent, IsThatOfTheShardings) {
  test::for_each_seed(2000, [](test::Rng& rng) {
    const auto sharding = test::random_problem(rng).from;
    for (int dim = 0; dim < sharding.ndim(); ++dim) {
      std::vector<Level> levels;
      for (int axis : sharding.axes_of_dim(dim)) {
        levels.push_back({&sharding.placement(axis), sharding.mesh().size(axis)});
      }
      const auto d = static_cast<size_t>(dim);
      int64_t most = 0;
      for (const auto& at : test::all_coordinates(sharding.mesh())) {
        most = std::max(most, local_shape(sharding, at)[d]);
      }
      EXPECT_EQ(largest_extent(sharding.shape()[d], levels), most) << sharding.to_text();
    }
  });
}

}  // namespace canonical_test
}  // namespace tessera::plan
