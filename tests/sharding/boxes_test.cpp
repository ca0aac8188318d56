#include "tessera/sharding/boxes.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>

#include "tests/support_pure/expect_error.h"
#include "tests/support_pure/index_oracle.h"
#include "tests/support_pure/random_shardings.h"

namespace tessera {
namespace boxes_test {

using test::expect_error;
using test::for_each_seed;
using test::Rng;

std::string text_of(const std::vector<Box>& boxes) {
  std::string out;
  for (const auto& box : boxes) {
    out += out.empty() ? "" : " ";
    for (size_t d = 0; d < box.begin.size(); ++d) {
      out += join_text(d > 0 ? "x" : "", "[", box.begin[d], ",", box.end[d], ")");
    }
    if (box.begin.empty()) out += "point";
  }
  return out.empty() ? "nothing" : out;
}

std::string text_of(const std::vector<SharedRun>& runs) {
  std::string out;
  for (const auto& run : runs) {
    out += join_text(out.empty() ? "" : " ", run.from, "->", run.to, " x", run.length);
  }
  return out.empty() ? "nothing" : out;
}

/// The elements of a box, as row-major indexes of the global tensor, in row-major order.
test::Indexes elements_of(const Box& box, std::span<const int64_t> shape) {
  test::Indexes elements{0};
  for (size_t d = 0; d < shape.size(); ++d) {
    test::Indexes grown;
    for (int64_t element : elements) {
      for (int64_t x = box.begin[d]; x < box.end[d]; ++x) grown.push_back(element * shape[d] + x);
    }
    elements = std::move(grown);
  }
  return elements;
}

TEST(Boxes, AreWhatTheRankHolds) {
  const auto held = [](std::string_view text, Coordinate coordinate) {
    return text_of(held_boxes(Sharding::parse(text), coordinate));
  };
  EXPECT_EQ(held("dp=2,tp=2 : SS0(2),R : 8x3", {1, 0}), "[2,4)x[0,3) [6,8)x[0,3)");
  EXPECT_EQ(held("dp=2,tp=2 : S0,S1 : 8x3", {1, 1}), "[4,8)x[2,3)");
  EXPECT_EQ(held("dp=2,tp=2 : SS0(2),SS1(2) : 4x4", {0, 1}),
            "[0,1)x[1,2) [0,1)x[3,4) [2,3)x[1,2) [2,3)x[3,4)");
  EXPECT_EQ(held("tp=4 : S0 : 2x3", {3}), "nothing");
  EXPECT_EQ(held("tp=4 : R : 2x0", {3}), "nothing");
  EXPECT_EQ(held("tp=4 : R : scalar", {3}), "point");
  EXPECT_EQ(Box{}.numel(), 1);
  EXPECT_EQ((Box{{1, 2}, {3, 5}}.numel()), 6);
}

TEST(Boxes, TileTheTensorOnceForEachSetOfCopies) {
  for_each_seed(1000, [](Rng& rng) {
    const auto mesh = test::random_mesh(rng);
    const Sharding s = test::random_sharding(rng, mesh, test::random_shape(rng));
    SCOPED_TRACE(s.to_text());
    int64_t copies = 1;
    for (int axis = 0; axis < mesh.ndim(); ++axis) {
      if (!s.placement(axis).is_sharded()) copies *= mesh.size(axis);
    }
    std::vector<int64_t> holders(static_cast<size_t>(s.numel()), 0);
    for (const auto& coordinate : test::all_coordinates(mesh)) {
      int64_t numel = 0;
      test::Indexes held;
      for (const auto& box : held_boxes(s, coordinate)) {
        EXPECT_GT(box.numel(), 0);
        numel += box.numel();
        for (int64_t element : elements_of(box, s.shape())) {
          held.push_back(element);
          ++holders[static_cast<size_t>(element)];
        }
      }
      EXPECT_EQ(numel, local_numel(s, coordinate));
      std::ranges::sort(held);
      EXPECT_EQ(held, test::oracle_elements(s, coordinate));  // local order is ascending
    }
    for (int64_t count : holders) EXPECT_EQ(count, copies);
  });
}

TEST(Boxes, CommonRunsGiveThePlacesInBothLocalTensors) {
  using Intervals = std::vector<Interval>;
  const auto runs = [](const Intervals& a, const Intervals& b) {
    return text_of(common_runs(a, b));
  };
  EXPECT_EQ(runs({{0, 10}}, {{3, 5}}), "3->0 x2");
  EXPECT_EQ(runs({{3, 5}}, {{0, 10}}), "0->3 x2");
  EXPECT_EQ(runs({{0, 3}}, {{3, 5}}), "nothing");
  EXPECT_EQ(runs({}, {{3, 5}}), "nothing");
  EXPECT_EQ(runs({{0, 3}}, {{0, 2}, {2, 3}}), "0->0 x3");
  EXPECT_EQ(runs({{0, 2}, {5, 7}}, {{1, 6}}), "1->0 x1 2->4 x1");
  EXPECT_EQ(runs({{0, 2}, {4, 6}}, {{0, 2}, {4, 6}}), "0->0 x4");
  EXPECT_EQ(runs({{0, 2}, {4, 6}, {8, 9}}, {{1, 5}, {8, 12}}), "1->0 x1 2->3 x1 4->4 x1");
}

TEST(Boxes, OverlapOfTwoShardingsOnDifferentMeshes) {
  const Sharding a = Sharding::parse("dp=2 : S0 : 10x4");
  const Sharding b = Sharding::parse("x=2,y=2 : S1,SS0(2) : 10x4");
  // Rows [5,10) and columns [0,4) against rows [0,3)+[5,8) and columns [2,4).
  const Overlap shared = overlap(a, Coordinate{1}, b, (Coordinate{1, 0}));
  ASSERT_EQ(shared.runs.size(), 2U);
  EXPECT_EQ(text_of(shared.runs[0]), "0->3 x3");
  EXPECT_EQ(text_of(shared.runs[1]), "2->0 x2");
  EXPECT_EQ(shared.numel(), 6);
  EXPECT_FALSE(shared.empty());
  const Sharding scalar = Sharding::parse("dp=2 : R : scalar");
  EXPECT_EQ(overlap(scalar, Coordinate{0}, scalar, Coordinate{1}).numel(), 1);
}

TEST(Boxes, OverlapIsTheCommonElementsWithTheirLocalPlaces) {
  for_each_seed(1000, [](Rng& rng) {
    const auto shape = test::random_shape(rng, 4, 200);
    const Sharding a = test::random_sharding(rng, test::random_mesh(rng, 3, 8), shape);
    const Sharding b = test::random_sharding(rng, test::random_mesh(rng, 3, 8), shape);
    SCOPED_TRACE(a.to_text() + " and " + b.to_text());
    for (const auto& at_a : test::all_coordinates(a.mesh())) {
      for (const auto& at_b : test::all_coordinates(b.mesh())) {
        const Overlap shared = overlap(a, at_a, b, at_b);
        ASSERT_EQ(std::ssize(shared.runs), a.ndim());
        int64_t numel = 1;
        for (int dim = 0; dim < a.ndim(); ++dim) {
          const auto held_a = test::oracle_held(a, dim, at_a);
          const auto held_b = test::oracle_held(b, dim, at_b);
          std::vector<std::pair<int64_t, int64_t>> expected;
          for (int64_t i = 0; i < std::ssize(held_a); ++i) {
            for (int64_t j = 0; j < std::ssize(held_b); ++j) {
              if (held_a[static_cast<size_t>(i)] == held_b[static_cast<size_t>(j)]) {
                expected.emplace_back(i, j);
              }
            }
          }
          std::vector<std::pair<int64_t, int64_t>> found;
          for (const auto& run : shared.runs[static_cast<size_t>(dim)]) {
            EXPECT_GT(run.length, 0);
            for (int64_t i = 0; i < run.length; ++i) found.emplace_back(run.from + i, run.to + i);
          }
          ASSERT_EQ(found, expected) << "dim " << dim;
          numel *= std::ssize(expected);
        }
        EXPECT_EQ(shared.numel(), numel);
        EXPECT_EQ(shared.empty(), numel == 0);
      }
    }
  });
}

TEST(Boxes, SayWhatIsWrong) {
  const Sharding a = Sharding::parse("dp=2 : S0 : 8x4");
  const Sharding b = Sharding::parse("dp=2 : S0 : 4x8");
  expect_error<InvalidArgument>([&] { overlap(a, Coordinate{0}, b, Coordinate{0}); },
                                {"two different tensors", a.to_text(), b.to_text()});
  expect_error<InvalidArgument>([&] { held_boxes(a, Coordinate{2}); }, {"coordinate 2 on axis dp"});
  expect_error<InvalidArgument>(
      [&] {
        overlap(a, Coordinate{0}, a, Coordinate{0, 0});
      },
      {"a coordinate of 2 numbers"});
}

}  // namespace boxes_test
}  // namespace tessera
