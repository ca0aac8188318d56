#include "tessera/sharding/local_shape.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <set>

#include "tessera/base/shape.h"
#include "tessera/sharding/dim_intervals.h"
#include "tests/support_pure/expect_error.h"
#include "tests/support_pure/index_oracle.h"
#include "tests/support_pure/random_shardings.h"

namespace tessera {
namespace local_shape_test {

using test::expect_error;
using test::for_each_seed;
using test::Rng;

using Shape = std::vector<int64_t>;

std::string text_of(std::span<const Interval> intervals) {
  std::string out;
  for (const auto& [begin, end] : intervals) {
    out += join_text(out.empty() ? "" : "+", "[", begin, ",", end, ")");
  }
  return out.empty() ? "nothing" : out;
}

/// What every rank holds of dim 0, in the order of the mesh.
std::string held_text(std::string_view sharding) {
  const Sharding s = Sharding::parse(sharding);
  std::string out;
  for (const auto& coordinate : test::all_coordinates(s.mesh())) {
    out += (out.empty() ? "" : " ") + text_of(held_intervals(s, 0, coordinate));
  }
  return out;
}

TEST(LocalShape, ChunksAsTorchChunk) {
  struct Case {
    int64_t n;
    int64_t count;
    Shape sizes;  // torch.chunk's, with zeros for the chunks it leaves out
  };
  const std::vector<Case> cases = {
      {10, 4, {3, 3, 3, 1}},       {2, 4, {1, 1, 0, 0}},
      {0, 4, {0, 0, 0, 0}},        {8, 4, {2, 2, 2, 2}},
      {9, 4, {3, 3, 3, 0}},        {5, 4, {2, 2, 1, 0}},
      {1, 3, {1, 0, 0}},           {7, 1, {7}},
      {6, 5, {2, 2, 2, 0, 0}},     {0, 1, {0}},
      {13, 6, {3, 3, 3, 3, 1, 0}}, {3, 2, {2, 1}},
  };
  for (const auto& [n, count, sizes] : cases) {
    int64_t at = 0;
    for (int64_t i = 0; i < count; ++i) {
      const Interval piece = chunk_interval(n, count, i);
      EXPECT_EQ(piece.begin, at) << n << " over " << count;
      EXPECT_EQ(piece.size(), sizes[static_cast<size_t>(i)]) << n << " over " << count;
      at = piece.end;
    }
    EXPECT_EQ(at, n);
  }
}

TEST(LocalShape, ChunksOfTheLargestNumbersDoNotOverflow) {
  constexpr int64_t kMost = INT64_MAX;
  EXPECT_EQ(chunk_interval(8, kMost, 3), (Interval{3, 4}));
  EXPECT_EQ(chunk_interval(kMost, 2, 0).size(), kMost / 2 + 1);
  EXPECT_EQ(chunk_interval(kMost, 2, 1).end, kMost);
  // As many pieces as one likes: the empty ones cost nothing.
  EXPECT_EQ(held_text("tp=2 : SS0(9223372036854775807) : 4"), "[0,4) nothing");
}

TEST(LocalShape, HoldsWhatTheHeadersSay) {
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"tp=4 : S0 : 10", "[0,3) [3,6) [6,9) [9,10)"},
      {"tp=4 : SS0(2) : 10", "[0,2)+[5,7) [2,4)+[7,9) [4,5)+[9,10) nothing"},
      {"a=2,b=2 : S0,S0 : 10", "[0,3) [3,5) [5,8) [8,10)"},
      {"a=2,b=2 : S0#1,S0#0 : 10", "[0,3) [5,8) [3,5) [8,10)"},
      {"tp=4 : S0[4,3,2,1] : 10", "[0,4) [4,7) [7,9) [9,10)"},
      {"tp=4 : S0[0,10,0,0] : 10", "nothing [0,10) nothing nothing"},
      {"tp=4 : R : 10", "[0,10) [0,10) [0,10) [0,10)"},
      {"tp=2 : P(sum) : 10", "[0,10) [0,10)"},
      {"tp=2 : S0 : 0", "nothing nothing"},
      {"tp=2 : R : 0", "nothing nothing"},
      {"tp=2 : S0 : 1", "[0,1) nothing"},
      {"tp=1 : SS0(3) : 7", "[0,7)"},
      {"a=2,b=2 : S0[4,6],S0[1,3,6,0] : 10", "[0,1) [1,4) [4,10) nothing"},
      {"a=2,b=2 : SS0(2),S0 : 8", "[0,2) [4,6) [2,4) [6,8)"},
      {"a=2,b=2 : SS0(2),S0 : 10", "[0,3) [5,8) [3,5) [8,10)"},
      {"a=2,b=2 : SS0(2),S0[1,5,4,0] : 10", "[0,1) [1,3)+[5,8) [3,5)+[8,10) nothing"},
  };
  for (const auto& [sharding, held] : cases) EXPECT_EQ(held_text(sharding), held) << sharding;
}

TEST(LocalShape, ARaggedTableInsideOtherShardsListsTheSizesOfEachOuterPieceInTurn) {
  // b shards first, into 6 and 5; a shards each in three.
  EXPECT_EQ(held_text("a=3,b=2 : S0[1,2,3,5,0,0]#1,S0[6,5]#0 : 11"),
            "[0,1) [6,11) [1,3) nothing [3,6) nothing");
  // Three levels, ragged in ragged in ragged.
  EXPECT_EQ(held_text("a=2,b=2,c=2 : S0[3,2],S0[3,0,1,1],S0[1,2,0,0,1,0,0,1] : 5"),
            "[0,1) [1,3) nothing nothing [3,4) nothing nothing [4,5)");
}

TEST(LocalShape, HoldsWhatListsOfIndexesHold) {
  for_each_seed(3000, [](Rng& rng) {
    const auto mesh = test::random_mesh(rng);
    const Sharding s = test::random_sharding(rng, mesh, test::random_shape(rng));
    SCOPED_TRACE(s.to_text());
    for (const auto& coordinate : test::all_coordinates(mesh)) {
      const auto shape = local_shape(s, coordinate);
      const auto offset = global_offset(s, coordinate);
      int64_t numel = 1;
      for (int dim = 0; dim < s.ndim(); ++dim) {
        const auto d = static_cast<size_t>(dim);
        const auto expected = test::oracle_held(s, dim, coordinate);
        const auto intervals = held_intervals(s, dim, coordinate);
        test::Indexes held;
        for (size_t i = 0; i < intervals.size(); ++i) {
          EXPECT_LT(intervals[i].begin, intervals[i].end);
          if (i > 0) {
            EXPECT_LT(intervals[i - 1].end, intervals[i].begin) << "not joined";
          }
          for (int64_t x = intervals[i].begin; x < intervals[i].end; ++x) held.push_back(x);
        }
        ASSERT_EQ(held, expected) << "dim " << dim;
        EXPECT_EQ(shape[d], std::ssize(expected));
        EXPECT_EQ(offset[d], expected.empty() ? s.shape()[d] : expected.front());
        numel *= shape[d];
      }
      EXPECT_EQ(local_numel(s, coordinate), numel);
    }
  });
}

TEST(LocalShape, EveryElementIsHeldOnceForEachSetOfCopies) {
  for_each_seed(1000, [](Rng& rng) {
    const auto mesh = test::random_mesh(rng);
    const Sharding s = test::random_sharding(rng, mesh, test::random_shape(rng));
    SCOPED_TRACE(s.to_text());
    // Ranks that agree on the axes that do not shard hold the tensor among them, once.
    std::map<Coordinate, test::Indexes> held;
    for (const auto& coordinate : test::all_coordinates(mesh)) {
      Coordinate copy;
      for (int axis = 0; axis < mesh.ndim(); ++axis) {
        if (!s.placement(axis).is_sharded()) copy.push_back(coordinate[static_cast<size_t>(axis)]);
      }
      const auto elements = test::oracle_elements(s, coordinate);
      EXPECT_EQ(std::ssize(elements), local_numel(s, coordinate));
      held[copy].insert(held[copy].end(), elements.begin(), elements.end());
    }
    for (auto& [copy, elements] : held) {
      std::ranges::sort(elements);
      EXPECT_EQ(elements, test::iota_indexes(s.numel()));
    }
  });
}

TEST(LocalShape, AnEmptyShardLiesAtTheEndOfItsDim) {
  const Sharding s = Sharding::parse("tp=4 : S0 : 2x3");
  EXPECT_EQ(global_offset(s, Coordinate{1}), (Shape{1, 0}));
  EXPECT_EQ(global_offset(s, Coordinate{2}), (Shape{2, 0}));
  EXPECT_EQ(global_offset(s, Coordinate{3}), (Shape{2, 0}));
  EXPECT_EQ(local_shape(s, Coordinate{3}), (Shape{0, 3}));
  // Also one that a ragged table puts in front, and one within an outer piece.
  EXPECT_EQ(global_offset(Sharding::parse("tp=2 : S0[0,5] : 5"), Coordinate{0}), Shape{5});
  EXPECT_EQ(global_offset(Sharding::parse("a=2,b=4 : S0,S0 : 4"), (Coordinate{0, 3})), Shape{4});
}

TEST(LocalShape, TheOtherOrderIsAStridedShardWhereAllIsEven) {
  for_each_seed(300, [](Rng& rng) {
    const int a = rng.int_between(1, 4);
    const int b = rng.int_between(1, 4);
    const int64_t n = a * b * rng.between(0, 4);
    const DeviceMesh mesh({{"a", a}, {"b", b}});
    const Sharding ordered(mesh, {Shard(0), Shard(0)}, {n, 2}, {.order = {1, 0}});
    const Sharding strided(mesh, {StridedShard(0, b), Shard(0)}, {n, 2});
    for (const auto& coordinate : test::all_coordinates(mesh)) {
      EXPECT_EQ(held_intervals(ordered, 0, coordinate), held_intervals(strided, 0, coordinate))
          << ordered.to_text() << " at " << list_text(coordinate);
    }
  });
}

TEST(LocalShape, TheMostThatARankHoldsIsFoundForEveryKindOfShard) {
  const auto most = [](std::string_view text) {
    return shape_text(max_local_shape(Sharding::parse(text)));
  };
  EXPECT_EQ(most("tp=4 : S0 : 10x3"), "3x3");
  EXPECT_EQ(most("tp=4 : S0[1,2,7,0] : 10x3"), "7x3");
  // More elements, but fewer for the first rank: 5 in four pieces is 2,2,1, and 4 is 1,1,1,1.
  EXPECT_EQ(most("a=2,b=2 : S0,SS0(4) : 9"), "4");

  for_each_seed(1000, [](Rng& rng) {
    const auto mesh = test::random_mesh(rng);
    const Sharding s = test::random_sharding(rng, mesh, test::random_shape(rng));
    Shape shape(static_cast<size_t>(s.ndim()), 0);
    int64_t numel = 0;
    for (const auto& coordinate : test::all_coordinates(mesh)) {
      const auto local = local_shape(s, coordinate);
      for (size_t d = 0; d < shape.size(); ++d) shape[d] = std::max(shape[d], local[d]);
      numel = std::max(numel, local_numel(s, coordinate));
    }
    EXPECT_EQ(max_local_shape(s), shape) << s.to_text();
    EXPECT_EQ(max_local_numel(s), numel) << s.to_text();
  });
}

TEST(LocalShape, LocalStridesNestAsTheGlobalOnesDo) {
  struct Case {
    std::string why;
    Shape local_shape;
    Shape global_stride;
    Shape expected;
  };
  const std::vector<Case> cases = {
      {"row-major", {2, 3, 4}, {60, 12, 1}, {12, 4, 1}},
      {"transposed", {2, 3}, {1, 8}, {1, 2}},
      {"channels last", {2, 3, 4, 5}, {300, 1, 75, 15}, {60, 1, 15, 3}},
      {"expanded", {4, 3}, {0, 1}, {0, 1}},
      {"expanded in the middle", {2, 5, 3}, {3, 0, 1}, {3, 0, 1}},
      {"expanded and sharded to one", {1, 3}, {0, 1}, {0, 1}},
      {"all expanded", {2, 3}, {0, 0}, {0, 0}},
      {"size 1 in the middle", {2, 1, 3}, {3, 3, 1}, {3, 3, 1}},
      {"size 1 last", {3, 1}, {1, 1}, {1, 1}},
      {"size 1 of a transposed tensor", {1, 3}, {1, 1}, {3, 1}},
      {"padded rows become dense", {4, 8}, {16, 1}, {8, 1}},
      {"empty", {0, 3}, {3, 1}, {3, 1}},
      {"empty inside", {2, 0, 3}, {12, 3, 1}, {3, 3, 1}},
      {"scalar", {}, {}, {}},
  };
  for (const auto& c : cases) {
    EXPECT_EQ(local_stride(c.local_shape, c.global_stride), c.expected) << c.why;
  }
}

TEST(LocalShape, ARowMajorTensorHasRowMajorParts) {
  for_each_seed(500, [](Rng& rng) {
    const auto mesh = test::random_mesh(rng);
    const Sharding s = test::random_sharding(rng, mesh, test::random_shape(rng));
    for (const auto& coordinate : test::all_coordinates(mesh)) {
      const auto shape = local_shape(s, coordinate);
      EXPECT_EQ(local_stride(shape, s.stride()), contiguous_stride(shape)) << s.to_text();
    }
  });
}

TEST(LocalShape, ADenseTensorHasDensePartsThatNestAlike) {
  for_each_seed(500, [](Rng& rng) {
    const auto mesh = test::random_mesh(rng);
    const Sharding s = test::random_sharding(rng, mesh, test::random_shape(rng), {.stride = true});
    const auto shape = local_shape(s, test::random_coordinate(rng, mesh));
    const auto stride = local_stride(shape, s.stride());
    std::vector<std::pair<int64_t, int64_t>> nesting;  // (stride, size) of the dims that have both
    for (size_t d = 0; d < shape.size(); ++d) {
      EXPECT_EQ(stride[d] == 0, s.stride()[d] == 0);
      if (stride[d] == 0) continue;
      if (shape[d] > 1) nesting.emplace_back(stride[d], shape[d]);
      for (size_t e = 0; e < shape.size(); ++e) {
        if (s.stride()[d] < s.stride()[e]) {
          EXPECT_LE(stride[d], stride[e]);
        }
      }
    }
    std::ranges::sort(nesting);
    int64_t expected = 1;
    for (const auto& [step, size] : nesting) {
      EXPECT_EQ(step, expected) << s.to_text();
      expected *= size;
    }
  });
}

TEST(LocalShape, SaysWhatIsWrongWithACoordinate) {
  const Sharding s = Sharding::parse("dp=2,tp=2 : S0,S0[2,2,2,2] : 8x3");
  const auto bad = [](const auto& f, std::initializer_list<std::string_view> says) {
    expect_error<InvalidArgument>(f, says);
  };
  bad([&] { local_shape(s, Coordinate{0}); }, {"a coordinate of 1 numbers", "dp=2,tp=2"});
  bad([&] { local_numel(s, Coordinate{0, 2}); }, {"coordinate 2 on axis tp"});
  bad([&] { global_offset(s, Coordinate{-1, 0}); }, {"coordinate -1 on axis dp"});
  bad([&] { held_intervals(s, 0, Coordinate{0, 7}); }, {"coordinate 7 on axis tp"});
  bad([&] { held_intervals(s, 2, Coordinate{0, 0}); }, {"dim 2 of dp=2,tp=2"});
}

TEST(DimIntervals, APlacementThatDoesNotShardIsOurBug) {
  const Placement p = Replicate();
  const DimShard one{&p, 2, 0};
  expect_error<InternalError>([&] { dim_intervals(4, std::span(&one, 1)); },
                              {"other than a shard"});
}

TEST(DimIntervals, NoShardsLeaveTheWholeDim) {
  EXPECT_EQ(text_of(dim_intervals(4, {})), "[0,4)");
  EXPECT_EQ(text_of(dim_intervals(0, {})), "nothing");
}

}  // namespace local_shape_test
}  // namespace tessera
