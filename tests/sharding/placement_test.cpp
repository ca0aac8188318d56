#include "tessera/sharding/placement.h"

#include <gtest/gtest.h>

#include <unordered_set>

#include "tests/support_pure/expect_error.h"
#include "tests/support_pure/property.h"

namespace tessera {
namespace placement_test {

using test::expect_error;
using test::for_each_seed;
using test::Rng;

using Sizes = std::vector<int64_t>;

const std::vector<ReduceOp> kOps = {ReduceOp::sum, ReduceOp::avg,     ReduceOp::max,
                                    ReduceOp::min, ReduceOp::product, ReduceOp::band,
                                    ReduceOp::bor, ReduceOp::bxor};

Placement random_placement(Rng& rng) {
  const int dim = rng.int_between(-3, 9);
  switch (rng.between(0, 4)) {
    case 0:
      return Replicate();
    case 1:
      return Shard(dim);
    case 2:
      return StridedShard(dim, rng.between(1, 6));
    case 3: {
      Sizes sizes(static_cast<size_t>(rng.between(1, 6)));
      for (auto& size : sizes) size = rng.between(0, 20);
      return RaggedShard(dim, std::move(sizes));
    }
    default:
      return Partial(rng.one_of(kOps));
  }
}

TEST(Placement, KnowsItsKind) {
  EXPECT_TRUE(Placement().is_replicate());
  EXPECT_TRUE(Replicate().is_replicate());
  EXPECT_FALSE(Replicate().is_sharded());
  EXPECT_TRUE(Shard(1).is_sharded());
  EXPECT_TRUE(Shard(1).is_plain_shard());
  EXPECT_TRUE(Shard(1).is_sharded(1));
  EXPECT_FALSE(Shard(1).is_sharded(0));
  EXPECT_FALSE(Replicate().is_sharded(0));
  EXPECT_TRUE(StridedShard(2, 3).is_sharded(2));
  EXPECT_FALSE(StridedShard(2, 3).is_plain_shard());
  EXPECT_EQ(StridedShard(2, 3).split(), 3);
  const Placement ragged = RaggedShard(0, {2, 1});
  EXPECT_TRUE(ragged.is_sharded(0));
  EXPECT_EQ(list_text(ragged.sizes()), "2,1");
  EXPECT_TRUE(Shard(0).sizes().empty());
  EXPECT_TRUE(Partial().is_partial());
  EXPECT_EQ(Partial().reduce_op(), ReduceOp::sum);
  EXPECT_FALSE(Partial(ReduceOp::max).is_sharded());
}

TEST(Placement, EqualityLooksAtWhatItsKindHas) {
  const std::vector<Placement> different = {
      Replicate(),
      Shard(0),
      Shard(1),
      Shard(-1),
      StridedShard(0, 2),
      StridedShard(0, 3),
      StridedShard(1, 2),
      RaggedShard(0, {2, 1}),
      RaggedShard(0, {1, 2}),
      RaggedShard(1, {2, 1}),
      RaggedShard(0, {2}),
      Partial(ReduceOp::sum),
      Partial(ReduceOp::avg),
      Partial(ReduceOp::bxor),
  };
  for (size_t i = 0; i < different.size(); ++i) {
    for (size_t j = 0; j < different.size(); ++j) {
      EXPECT_EQ(different[i] == different[j], i == j)
          << different[i].to_text() << " " << different[j].to_text();
    }
  }
  EXPECT_EQ(std::unordered_set<Placement>(different.begin(), different.end()).size(),
            different.size());
  EXPECT_EQ(RaggedShard(0, {2, 1}), RaggedShard(0, {2, 1}));
  EXPECT_EQ(RaggedShard(0, {2, 1}).hash(), RaggedShard(0, {2, 1}).hash());
  EXPECT_EQ(Replicate().on_dim(3), Replicate());
  EXPECT_EQ(Replicate().on_dim(3).hash(), Replicate().hash());
}

TEST(Placement, AStridedShardOfOnePieceIsAShard) {
  EXPECT_EQ(StridedShard(2, 1), Shard(2));
  EXPECT_EQ(StridedShard(2, 1).hash(), Shard(2).hash());
  EXPECT_TRUE(StridedShard(2, 1).is_plain_shard());
}

TEST(Placement, OnAnotherDimKeepsTheRest) {
  EXPECT_EQ(Shard(0).on_dim(2), Shard(2));
  EXPECT_EQ(StridedShard(0, 4).on_dim(1), StridedShard(1, 4));
  EXPECT_EQ(RaggedShard(0, {4, 1}).on_dim(1), RaggedShard(1, {4, 1}));
}

TEST(Placement, HasOneFormForEveryWayToWriteIt) {
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"R", "R"},
      {" R ", "R"},
      {"S0", "S0"},
      {"S -1", "S-1"},
      {"S12", "S12"},
      {"SS0(2)", "SS0(2)"},
      {"SS-2( 4 )", "SS-2(4)"},
      {"SS1(1)", "S1"},
      {"S0[4,3,2,1]", "S0[4,3,2,1]"},
      {"S0[ 0 , 10 ]", "S0[0,10]"},
      {"P", "P(sum)"},
      {"P(sum)", "P(sum)"},
      {"P( bxor )", "P(bxor)"},
  };
  for (const auto& [text, canonical] : cases) {
    EXPECT_EQ(Placement::parse(text).to_text(), canonical) << text;
  }
}

TEST(Placement, ReadsWhatItWrites) {
  for_each_seed(500, [](Rng& rng) {
    const Placement p = random_placement(rng);
    EXPECT_EQ(Placement::parse(p.to_text()), p);
    EXPECT_EQ(Placement::parse(p.to_text()).hash(), p.hash());
    const std::vector<Placement> list = {p, random_placement(rng), random_placement(rng)};
    EXPECT_EQ(parse_placements(placements_text(list)), list);
  });
}

TEST(Placement, EveryReductionHasAName) {
  const std::vector<std::string> names = {"sum",     "avg",  "max", "min",
                                          "product", "band", "bor", "bxor"};
  for (size_t i = 0; i < kOps.size(); ++i) {
    EXPECT_EQ(reduce_op_name(kOps[i]), names[i]);
    EXPECT_EQ(reduce_op_from_name(names[i]), kOps[i]);
    EXPECT_EQ(Partial(kOps[i]).to_text(), "P(" + names[i] + ")");
  }
}

TEST(Placement, SaysWhatIsWrongWithAText) {
  struct Case {
    std::string text;
    std::string says;
  };
  const std::vector<Case> cases = {
      {"", "expected a placement: R, S0, S0[3,3,1], SS0(2) or P(sum) at position 0"},
      {"Q", "cannot read \"Q\": expected a placement"},
      {"r", "expected a placement"},
      {"Replicate", "expected the end at position 1, found 'e'"},
      {"R0", "expected the end at position 1, found '0'"},
      {"S", "expected the dim of a shard at position 1, found the end"},
      {"Sx", "expected the dim of a shard at position 1, found 'x'"},
      {"S0 S1", "expected the end at position 3, found 'S'"},
      {"S4294967296", "a shard of dim 4294967296"},
      {"S99999999999999999999", "64 bits"},
      {"S0[", "expected a size of a ragged shard at position 3"},
      {"S0[]", "expected a size of a ragged shard at position 3, found ']'"},
      {"S0[1,]", "expected a size of a ragged shard at position 5"},
      {"S0[1", "expected ']' at position 4, found the end"},
      {"S0[1 2]", "expected ']' at position 5, found '2'"},
      {"S0[3,-1]", "RaggedShard(0, {3,-1}): a size is negative"},
      {"S0[9223372036854775807,1]", "does not fit 64 bits"},
      {"SS0", "expected '(' at position 3, found the end"},
      {"SS0()", "expected the split of a strided shard at position 4"},
      {"SS0(2", "expected ')' at position 5, found the end"},
      {"SS0(0)", "StridedShard(0, 0): the split is at least 1"},
      {"SS0(-1)", "the split is at least 1"},
      {"P(", "expected a reduction at position 2, found the end"},
      {"P()", "expected a reduction at position 2, found ')'"},
      {"P(mean)", "no reduction is called \"mean\"; there are sum, avg, max, min, product"},
      {"P(sum", "expected ')' at position 5, found the end"},
  };
  for (const auto& [text, says] : cases) {
    SCOPED_TRACE(text);
    expect_error<InvalidArgument>([&] { Placement::parse(text); }, {says});
  }
  expect_error<InvalidArgument>([] { parse_placements("S0,,R"); },
                                {"cannot read \"S0,,R\"", "position 3, found ','"});
}

TEST(Placement, SaysWhatIsWrongWithAnArgument) {
  expect_error<InvalidArgument>([] { RaggedShard(0, {}); }, {"RaggedShard(0, {})", "one size"});
  expect_error<InvalidArgument>([] { StridedShard(1, 0); }, {"StridedShard(1, 0)"});
  expect_error<InvalidArgument>([] { reduce_op_from_name("SUM"); }, {"\"SUM\""});
}

}  // namespace placement_test
}  // namespace tessera
