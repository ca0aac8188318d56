#include "tessera/sharding/sharding.h"

#include <gtest/gtest.h>

#include <barrier>
#include <thread>
#include <unordered_set>

#include "tessera/base/shape.h"
#include "tessera/sharding/local_shape.h"
#include "tessera/sharding/sharding_node.h"
#include "tests/support_pure/expect_error.h"
#include "tests/support_pure/random_shardings.h"

namespace tessera {
namespace sharding_test {

using test::expect_error;
using test::for_each_seed;
using test::Rng;

using Shape = std::vector<int64_t>;
using Axes = std::vector<int>;

Shape list(std::span<const int64_t> values) { return {values.begin(), values.end()}; }
Axes list(std::span<const int> values) { return {values.begin(), values.end()}; }

const DeviceMesh& mesh22() {
  static const DeviceMesh mesh({{"dp", 2}, {"tp", 2}});
  return mesh;
}

TEST(Sharding, HoldsWhatItWasMadeOf) {
  const Sharding s(mesh22(), {Shard(0), Partial(ReduceOp::max)}, {8, 16}, {.dtype = DType::bf16});
  EXPECT_EQ(s.mesh(), mesh22());
  EXPECT_EQ(s.ndim(), 2);
  EXPECT_EQ(s.numel(), 128);
  EXPECT_EQ(list(s.shape()), (Shape{8, 16}));
  EXPECT_EQ(list(s.stride()), (Shape{16, 1}));
  EXPECT_EQ(s.dtype(), DType::bf16);
  EXPECT_EQ(s.placement(0), Shard(0));
  EXPECT_EQ(s.placement(1), Partial(ReduceOp::max));
  EXPECT_TRUE(s.has_partial());
  EXPECT_TRUE(s.has_sharded());
  EXPECT_FALSE(s.is_replicated());
  EXPECT_TRUE(s.replicated().is_replicated());
  EXPECT_FALSE(s.replicated().has_sharded());
  EXPECT_EQ(s.replicated().dtype(), DType::bf16);
}

TEST(Sharding, CountsNegativeDimsFromTheEnd) {
  const Sharding s(mesh22(), {Shard(-1), StridedShard(-2, 2)}, {8, 16});
  EXPECT_EQ(s.placement(0), Shard(1));
  EXPECT_EQ(s.placement(1), StridedShard(0, 2));
  EXPECT_EQ(s, Sharding(mesh22(), {Shard(1), StridedShard(0, 2)}, {8, 16}));
}

TEST(Sharding, KeepsTheOrderOfAxesThatShardOneDim) {
  const DeviceMesh mesh = DeviceMesh::parse("a=2,b=2,c=2");
  const std::vector<Placement> placements = {Shard(0), Shard(1), Shard(0)};
  const Sharding usual(mesh, placements, {8, 8});
  EXPECT_TRUE(usual.has_default_order());
  EXPECT_EQ(list(usual.axes_of_dim(0)), (Axes{0, 2}));
  EXPECT_EQ(list(usual.axes_of_dim(1)), (Axes{1}));
  EXPECT_EQ(usual.order(), (Axes{0, 2, 1}));

  const Sharding other(mesh, placements, {8, 8}, {.order = {2, 0}});
  EXPECT_FALSE(other.has_default_order());
  EXPECT_EQ(list(other.axes_of_dim(0)), (Axes{2, 0}));
  EXPECT_NE(other, usual);
}

TEST(Sharding, OrderMattersOnlyAmongAxesOfOneDim) {
  const DeviceMesh mesh = DeviceMesh::parse("a=2,b=2,c=2");
  const std::vector<Placement> placements = {Shard(0), Shard(1), Replicate()};
  const Sharding usual(mesh, placements, {8, 8});
  EXPECT_EQ(Sharding(mesh, placements, {8, 8}, {.order = {2, 1, 0}}), usual);
  EXPECT_EQ(Sharding(mesh, placements, {8, 8}, {.order = {1}}), usual);
}

TEST(Sharding, EqualValuesAreOneObject) {
  for_each_seed(300, [](Rng& rng) {
    const auto mesh = test::random_mesh(rng);
    const auto shape = test::random_shape(rng);
    Rng again = rng;
    const test::RandomOptions options{.stride = true, .dtype = true};
    const Sharding a = test::random_sharding(rng, mesh, shape, options);
    const Sharding b = test::random_sharding(again, mesh, shape, options);
    EXPECT_EQ(a, b);
    EXPECT_EQ(a.id(), b.id());
    EXPECT_EQ(std::hash<Sharding>()(a), std::hash<Sharding>()(b));
  });
}

TEST(Sharding, EqualityLooksAtEveryPartOfTheValue) {
  const Sharding s(mesh22(), {Shard(0), Shard(0)}, {8, 16});
  const std::vector<Sharding> different = {
      s,
      Sharding(),
      Sharding(mesh22(), {Shard(0), Shard(0)}, {8, 16}, {.order = {1, 0}}),
      Sharding(mesh22(), {Shard(0), Shard(0)}, {8, 16}, {.stride = {1, 8}}),
      s.with_dtype(DType::f64),
      s.with_mesh(mesh22().with_own_rank(0)),
      s.with_mesh(DeviceMesh::parse("dp=2,pp=2")),
      s.with_shape({8, 17}),
      s.with(1, Shard(1)),
      s.with(0, Replicate()),
      s.replicated(),
  };
  for (size_t i = 0; i < different.size(); ++i) {
    for (size_t j = 0; j < different.size(); ++j) {
      EXPECT_EQ(different[i] == different[j], i == j)
          << different[i].to_text() << " and " << different[j].to_text();
      if (!different[i].defined() || !different[j].defined()) continue;
      // Also where two hashes collide.
      EXPECT_EQ(*different[i].id() == *different[j].id(), i == j);
    }
  }
  EXPECT_EQ(std::unordered_set<Sharding>(different.begin(), different.end()).size(),
            different.size());
}

TEST(Sharding, LetsGoOfItsMemory) {
  const size_t before = live_shardings();
  {
    std::vector<Sharding> kept;
    for (int64_t n = 1; n <= 50; ++n) {
      for (int i = 0; i < 2; ++i)
        kept.emplace_back(mesh22(), std::vector{Shard(0), Replicate()}, Shape{n, 3});
    }
    EXPECT_EQ(live_shardings(), before + 50);
    kept.resize(20);
    EXPECT_EQ(live_shardings(), before + 10);
  }
  EXPECT_EQ(live_shardings(), before);
  expect_error<InvalidArgument>([] { Sharding(mesh22(), {Shard(9), Shard(0)}, {3}); }, {});
  EXPECT_EQ(live_shardings(), before);
}

TEST(Sharding, ThreadsThatMakeTheSameShardingsGetTheSameObjects) {
  constexpr int kThreads = 6;
  const size_t before = live_shardings();
  std::vector<std::vector<const Sharding::Node*>> seen(kThreads);
  std::barrier meet(kThreads);
  std::vector<std::thread> threads;
  for (auto& mine : seen) {
    threads.emplace_back([&mine, &meet] {
      // The first rounds make and drop, so that threads meet objects that are just going away.
      for (uint64_t round = 0; round < 20; ++round) {
        std::vector<Sharding> kept;
        for (uint64_t seed = 0; seed < 30; ++seed) {
          Rng rng(seed);
          const auto mesh = test::random_mesh(rng);
          kept.push_back(test::random_sharding(rng, mesh, test::random_shape(rng)));
        }
        if (round < 19) continue;
        meet.arrive_and_wait();
        for (const auto& s : kept) mine.push_back(s.id());
        meet.arrive_and_wait();
      }
    });
  }
  for (auto& thread : threads) thread.join();
  for (const auto& mine : seen) EXPECT_EQ(mine, seen[0]);
  EXPECT_EQ(live_shardings(), before);
}

TEST(Sharding, WithChangesOneAxisAndMakesItInnermost) {
  const Sharding s = Sharding::parse("a=2,b=2,c=2 : S0,R,S0 : 8x8 bf16");
  EXPECT_EQ(s.with(1, Shard(0)).to_text(), "a=2,b=2,c=2 : S0#0,S0#2,S0#1 : 8x8 bf16");
  EXPECT_EQ(s.with(1, Shard(1)).to_text(), "a=2,b=2,c=2 : S0,S1,S0 : 8x8 bf16");
  EXPECT_EQ(s.with(0, Replicate()).to_text(), "a=2,b=2,c=2 : R,R,S0 : 8x8 bf16");
  EXPECT_EQ(s.with(0, Shard(0)).to_text(), "a=2,b=2,c=2 : S0#1,R,S0#0 : 8x8 bf16");
  EXPECT_EQ(s.with(2, Shard(0)), s);
  EXPECT_EQ(s.with(2, Shard(-2)), s);
}

TEST(Sharding, WithChangesKeepTheRest) {
  const Sharding s = Sharding::parse("dp=2,tp=2 : S0#1,S0#0 : 8x6 bf16 {1,8}");
  EXPECT_EQ(s.with_dtype(DType::f32).to_text(), "dp=2,tp=2 : S0#1,S0#0 : 8x6 {1,8}");
  EXPECT_EQ(s.with_dtype(DType::bf16), s);
  EXPECT_EQ(s.with_mesh(DeviceMesh::parse("x=4,y=1")).to_text(),
            "x=4,y=1 : S0#1,S0#0 : 8x6 bf16 {1,8}");
  EXPECT_EQ(s.with_shape({4, 4, 4}).to_text(), "dp=2,tp=2 : S0#1,S0#0 : 4x4x4 bf16");
  EXPECT_EQ(s.with_shape({4, 4}, {1, 4}).to_text(), "dp=2,tp=2 : S0#1,S0#0 : 4x4 bf16 {1,4}");
  EXPECT_EQ(s.with_placements({Shard(0), Shard(0)}).to_text(),
            "dp=2,tp=2 : S0,S0 : 8x6 bf16 {1,8}");
  EXPECT_EQ(s.with_placements({Shard(1), Shard(1)}, {1, 0}).to_text(),
            "dp=2,tp=2 : S1#1,S1#0 : 8x6 bf16 {1,8}");
  EXPECT_EQ(s.replicated().to_text(), "dp=2,tp=2 : R,R : 8x6 bf16 {1,8}");
}

TEST(Sharding, MyPartIsThatOfTheRankTheMeshIsSeenFrom) {
  for_each_seed(300, [](Rng& rng) {
    const auto mesh = test::with_random_ranks(rng, test::random_mesh(rng));
    const Sharding paper =
        test::random_sharding(rng, mesh, test::random_shape(rng), {.stride = true});
    const auto same = [](const Sharding& s, const Coordinate& at) {
      EXPECT_EQ(list(s.local_shape()), local_shape(s, at));
      EXPECT_EQ(s.local_numel(), local_numel(s, at));
      EXPECT_EQ(list(s.local_offset()), global_offset(s, at));
      EXPECT_EQ(list(s.local_stride()), local_stride(s.local_shape(), s.stride()));
    };
    same(paper, Coordinate(static_cast<size_t>(mesh.ndim()), 0));
    for (int rank : mesh.ranks()) {
      same(paper.with_mesh(mesh.with_own_rank(rank)), *mesh.coordinate_of(rank));
    }
  });
}

TEST(Sharding, OutsideTheMeshIHoldNothing) {
  const DeviceMesh mesh = mesh22().with_own_rank(9);
  const Sharding s(mesh, {Shard(0), Replicate()}, {8, 3});
  EXPECT_EQ(list(s.local_shape()), (Shape{0, 0}));
  EXPECT_EQ(list(s.local_offset()), (Shape{8, 3}));
  EXPECT_EQ(s.local_numel(), 0);
  EXPECT_EQ(s.numel(), 24);
  const Sharding scalar(mesh, {Replicate(), Replicate()}, {});
  EXPECT_EQ(scalar.local_numel(), 0);
  EXPECT_EQ(scalar.numel(), 1);
}

TEST(Sharding, OfAScalarIsReplicatedOrPartial) {
  const Sharding s(mesh22(), {Replicate(), Partial()}, {});
  EXPECT_EQ(s.numel(), 1);
  EXPECT_EQ(s.local_numel(), 1);
  EXPECT_EQ(s.ndim(), 0);
  EXPECT_TRUE(s.order().empty());
}

TEST(Sharding, RowMajorStridesTreatEmptyDimsAsOne) {
  EXPECT_EQ(contiguous_stride(Shape{2, 3, 4}), (Shape{12, 4, 1}));
  EXPECT_EQ(contiguous_stride(Shape{2, 0, 4}), (Shape{4, 4, 1}));
  EXPECT_EQ(contiguous_stride(Shape{}), Shape{});
}

TEST(Sharding, SaysWhatIsWrong) {
  const auto bad = [](const auto& f, std::initializer_list<std::string_view> says) {
    expect_error<InvalidArgument>(f, says);
  };
  const std::vector<Placement> rr = {Replicate(), Replicate()};
  const auto big = int64_t{1} << 40;
  bad([&] { Sharding(DeviceMesh(), rr, {3}); }, {"a sharding needs a mesh"});
  bad([&] { Sharding(mesh22(), {Shard(0)}, {3}); },
      {"mesh dp=2,tp=2 has 2 axes but 1 placements were given: S0"});
  bad(
      [&] {
        Sharding(mesh22(), {Shard(1), Shard(0)}, {3});
      },
      {"S1 needs dim 1 of a tensor with 1 dims, in dp=2,tp=2 : S1,S0 : 3"});
  bad([&] { Sharding(mesh22(), {Shard(-2), Shard(0)}, {3}); }, {"S-2 needs dim -2"});
  bad([&] { Sharding(mesh22(), {Shard(0), Replicate()}, {}); }, {"0 dims", ": scalar"});
  bad([&] { Sharding(mesh22(), rr, {3, -1}); }, {"3x-1", "a size is negative"});
  bad([&] { Sharding(mesh22(), rr, {big, big}); }, {"1099511627776x1099511627776", "64 bits"});
  bad([&] { Sharding(mesh22(), rr, {0, big, big}); }, {"64 bits"});
  bad([&] { Sharding(mesh22(), rr, {big, 1 << 21}); }, {"more bytes"});
  bad([&] { Sharding(mesh22(), rr, {3, 4}, {.stride = {1}}); }, {"{1}", "3x4"});
  bad([&] { Sharding(mesh22(), rr, {3, 4}, {.stride = {-4, 1}}); }, {"{-4,1}", "negative"});
  bad([&] { Sharding(mesh22(), rr, {}, {.stride = {1}}); }, {"{1}", "scalar"});
  bad([&] { Sharding(mesh22(), rr, {3}, {.order = {0, 2}}); }, {"order {0,2}", "dp=2,tp=2"});
  bad([&] { Sharding(mesh22(), rr, {3}, {.order = {1, 1}}); }, {"order {1,1}", "once each"});
  bad([&] { Sharding(mesh22(), rr, {3}, {.order = {-1}}); }, {"order {-1}"});
  bad(
      [&] {
        Sharding(mesh22(), {RaggedShard(0, {1, 2, 3}), Replicate()}, {6});
      },
      {"S0[1,2,3] lists 3 sizes, axis dp needs 2", "dp=2,tp=2 : S0[1,2,3],R : 6"});
  bad(
      [&] {
        Sharding(mesh22(), {RaggedShard(0, {1, 2}), Replicate()}, {6});
      },
      {"the sizes 1,2 sum to 3, dim 0 has 6 to share"});
  bad(
      [&] {
        Sharding(mesh22(), {Shard(0), RaggedShard(0, {2, 1})}, {6});
      },
      {"S0[2,1] lists 2 sizes, axis tp needs 4"});
  bad(
      [&] {
        Sharding(mesh22(), {Shard(0), RaggedShard(0, {2, 1, 3, 1})}, {6});
      },
      {"the sizes 3,1 sum to 4, dim 0 has 3 to share"});
  bad(
      [&] {
        Sharding(mesh22(), {Partial(), Partial(ReduceOp::max)}, {6});
      },
      {"P(sum) on one axis and P(max) on another", "dp=2,tp=2 : P(sum),P(max) : 6"});
  expect_error<NotSupported>(
      [&] { Sharding(mesh22(), rr, {3}, {.dtype = static_cast<DType>(12)}); },
      {"element type number 12"});

  const Sharding s(mesh22(), rr, {3, 4});
  bad([&] { s.placement(2); }, {"axis 2 of dp=2,tp=2 : R,R : 3x4"});
  bad([&] { s.axes_of_dim(-1); }, {"dim -1 of dp=2,tp=2 : R,R : 3x4"});
  bad([&] { s.with(5, Shard(0)); }, {"axis 5"});
  bad([&] { s.with_shape({1, 2}, {1}); }, {"{1}"});
  bad([&] { s.with_mesh(DeviceMesh::parse("tp=2")); }, {"has 1 axes but 2 placements"});
}

TEST(Sharding, SumAndAverageMayMeet) {
  EXPECT_TRUE(Sharding(mesh22(), {Partial(), Partial(ReduceOp::avg)}, {6}).has_partial());
}

TEST(Sharding, WithoutAShardingEveryUseIsAnErrorNotACrash) {
  const Sharding none;
  EXPECT_FALSE(none.defined());
  EXPECT_EQ(none.to_text(), "(no sharding)");
  const auto undefined = [](const auto& f) {
    expect_error<InvalidArgument>(f, {"an undefined sharding was used"});
  };
  undefined([&] { none.mesh(); });
  undefined([&] { none.shape(); });
  undefined([&] { none.placement(0); });
  undefined([&] { none.axes_of_dim(0); });
  undefined([&] { none.with(0, Shard(0)); });
  undefined([&] { none.replicated(); });
  undefined([&] { none.placements_text(); });
  undefined([&] { local_shape(none, Coordinate{0}); });
}

}  // namespace sharding_test
}  // namespace tessera
