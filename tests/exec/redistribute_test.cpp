#include "tessera/exec/redistribute.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/ones.h>
#include <gtest/gtest.h>

#include "tessera/base/errors.h"
#include "tessera/comm/fake.h"
#include "tessera/comm/threads.h"
#include "tessera/exec/program.h"
#include "tessera/observe/expect.h"
#include "tessera/observe/recorder.h"
#include "tests/support/parts.h"
#include "tests/support_pure/random_shardings.h"

namespace tessera {
namespace redistribute_test {

using comm::run_ranks;
using exec::redistribute;
using test::part_of;

/// `text` on the mesh of the calling rank's world.
Sharding on_world(std::string_view text) {
  const Sharding paper = Sharding::parse(text);
  return paper.with_mesh(comm::init_device_mesh(paper.mesh().to_text()));
}

Coordinate me(const Sharding& sharding) { return *sharding.mesh().my_coordinate(); }

void expect_part(const at::Tensor& got, const at::Tensor& full, const Sharding& to) {
  const at::Tensor want = part_of(full, to, me(to));
  ASSERT_EQ(got.sizes(), want.sizes()) << to.to_text();
  ASSERT_EQ(got.scalar_type(), want.scalar_type());
  EXPECT_TRUE(at::equal(got, want)) << to.to_text() << "\ngot\n" << got << "\nwant\n" << want;
}

/// Every rank moves its part of a fixed tensor and compares with the part it should have.
void expect_move(std::string_view from_text, std::string_view to_text,
                 at::ScalarType dtype = at::kFloat) {
  const int ranks = Sharding::parse(from_text).mesh().size();
  run_ranks(ranks, [&](int) {
    const auto code = static_cast<DType>(dtype);
    const Sharding from = on_world(from_text).with_dtype(code);
    const Sharding to = on_world(to_text).with_dtype(code);
    test::Rng rng(5);
    const at::Tensor full =
        test::random_whole_numbers(rng, {from.shape().begin(), from.shape().end()}, dtype);
    const at::Tensor got = redistribute(part_of(full, from, me(from)), from, to);
    if (!to.has_partial()) expect_part(got, full, to);
  });
}

TEST(Redistribute, MovesBetweenAllPlacementsOfOneAxis) {
  for (const char* shape : {"8x6", "7x5", "2x3", "1x4", "0x4"}) {
    for (const char* from :
         {"R", "S0", "S1", "P(sum)", "P(max)", "P(min)", "P(product)", "SS0(2)"}) {
      for (const char* to : {"R", "S0", "S1", "SS1(2)"}) {
        SCOPED_TRACE(join_text(shape, " ", from, " -> ", to));
        expect_move(join_text("tp=4 : ", from, " : ", shape),
                    join_text("tp=4 : ", to, " : ", shape));
      }
    }
  }
}

TEST(Redistribute, KeepsUnevenRowsApartOnTwoAxes) {
  // Two axes that shard the same dim unevenly, gathered over the flattened group: padding must not
  // end up between the rows.
  expect_move("a=2,b=2 : S0,S0 : 5x3", "a=2,b=2 : R,R : 5x3");
  expect_move("a=2,b=2 : S0#1,S0#0 : 5x3", "a=2,b=2 : R,R : 5x3");
  expect_move("a=3,b=2 : S0,S0 : 7x2", "a=3,b=2 : S1,S0 : 7x2");
  // Between the two axes and the flattened one, which splits 2,2,1,0 rows where they split 2,1,1,1.
  expect_move("a=2,b=2 : S0,S0 : 5x3", "ab=4 : S0 : 5x3");
  expect_move("ab=4 : S0 : 5x3", "a=2,b=2 : S0,S0 : 5x3");
  expect_move("ab=4 : S0 : 5x3", "a=2,b=2 : R,S0 : 5x3");
}

TEST(Redistribute, MovesRaggedParts) {
  expect_move("tp=4 : S0[1,2,3,4] : 10x3", "tp=4 : R : 10x3");
  expect_move("tp=4 : S0[1,2,3,4] : 10x3", "tp=4 : S0 : 10x3");
  expect_move("tp=4 : S1 : 10x3", "tp=4 : S0[0,0,10,0] : 10x3");
}

TEST(Redistribute, CarriesEveryElementType) {
  for (const auto dtype :
       {at::kBool, at::kByte, at::kChar, at::kShort, at::kInt, at::kLong, at::kHalf, at::kBFloat16,
        at::kDouble, at::kComplexFloat, at::kComplexDouble, at::kFloat8_e4m3fn, at::kUInt16}) {
    SCOPED_TRACE(c10::toString(dtype));
    run_ranks(3, [&](int) {
      const auto code = static_cast<DType>(dtype);
      const Sharding rows = on_world("tp=3 : S0 : 5x4").with_dtype(code);
      const Sharding columns = on_world("tp=3 : S1 : 5x4").with_dtype(code);
      const Sharding whole = rows.replicated();
      const at::Tensor full = at::arange(20, at::kInt).reshape({5, 4}).to(dtype);
      const at::Tensor mine =
          full.view(full.element_size() == 1 ? at::kByte : dtype);  // fp8 has no equal()
      const at::Tensor part =
          part_of(mine, rows.with_dtype(static_cast<DType>(mine.scalar_type())), me(rows))
              .view(dtype);
      const auto bytes = [](const at::Tensor& t) {
        return t.contiguous().view(at::IntArrayRef({t.numel()})).view(at::kByte);
      };
      EXPECT_TRUE(at::equal(bytes(redistribute(part, rows, whole)), bytes(full)));
      const at::Tensor turned = redistribute(redistribute(part, rows, columns), columns, whole);
      EXPECT_TRUE(at::equal(bytes(turned), bytes(full)));
    });
  }
}

TEST(Redistribute, ReducesEveryTypeThatHasTheReduction) {
  for (const auto dtype : {at::kShort, at::kInt, at::kLong, at::kHalf, at::kBFloat16, at::kDouble,
                           at::kComplexFloat}) {
    SCOPED_TRACE(c10::toString(dtype));
    expect_move("tp=3 : P(sum) : 4x3", "tp=3 : R : 4x3", dtype);
    expect_move("tp=3 : P(sum) : 4x3", "tp=3 : S0 : 4x3", dtype);
  }
  for (const char* op : {"band", "bor", "bxor"}) {
    expect_move(join_text("tp=3 : P(", op, ") : 5"), "tp=3 : R : 5", at::kLong);
    expect_move(join_text("tp=3 : P(", op, ") : 5"), "tp=3 : S0 : 5", at::kInt);
  }
  run_ranks(2, [](int) {
    const Sharding partial = on_world("tp=2 : P(max) : 2 c64");
    EXPECT_THROW(redistribute(at::ones({2}, at::kComplexFloat), partial, partial.replicated()),
                 NotSupported);
  });
}

TEST(Redistribute, TruthValuesReduceAsLogic) {
  run_ranks(2, [](int rank) {
    const Sharding any = on_world("tp=2 : P(bor) : 2 bool");
    const Sharding all = on_world("tp=2 : P(band) : 2 bool");
    const at::Tensor mine = at::arange(2).eq(rank);
    EXPECT_TRUE(redistribute(mine, any, any.replicated()).all().item<bool>());
    EXPECT_FALSE(redistribute(mine, all, all.replicated()).any().item<bool>());
  });
}

TEST(Redistribute, TakesAnyLayoutOfTheLocalTensor) {
  run_ranks(4, [](int) {
    const Sharding from = on_world("tp=4 : S0 : 8x6");
    for (const char* to_text : {"tp=4 : R : 8x6", "tp=4 : S1 : 8x6"}) {
      const Sharding to = on_world(to_text);
      const at::Tensor full = at::arange(48, at::kFloat).reshape({8, 6});
      const at::Tensor part = part_of(full, from, me(from)).t().contiguous().t();
      ASSERT_FALSE(part.is_contiguous());
      expect_part(redistribute(part, from, to), full, to);
    }
  });
}

TEST(Redistribute, ASliceIsACopyUnlessAliasingIsAllowed) {
  run_ranks(2, [](int) {
    const Sharding whole = on_world("tp=2 : R : 4x6");
    const Sharding rows = on_world("tp=2 : S0 : 4x6");
    const Sharding columns = on_world("tp=2 : S1 : 4x6");
    const at::Tensor full = at::arange(24, at::kFloat).reshape({4, 6});
    EXPECT_FALSE(redistribute(full, whole, rows).is_alias_of(full));
    for (const auto& to : {rows, columns}) {
      const at::Tensor view = redistribute(full, whole, to, {.may_alias = true});
      EXPECT_TRUE(view.is_alias_of(full));
      expect_part(view, full, to);
    }
    EXPECT_TRUE(redistribute(full, whole, whole).is_same(full));
  });
}

TEST(Redistribute, TheInputIsLeftAlone) {
  run_ranks(2, [](int rank) {
    const Sharding partial = on_world("tp=2 : P(sum) : 4");
    const at::Tensor mine = at::ones({4}) * (rank + 1);
    EXPECT_TRUE(at::equal(redistribute(mine, partial, partial.replicated()), at::ones({4}) * 3));
    EXPECT_TRUE(at::equal(mine, at::ones({4}) * (rank + 1)));
    const at::Tensor given = redistribute(mine, partial, partial.replicated(), {.consume = true});
    EXPECT_TRUE(given.is_alias_of(mine));
  });
}

TEST(Redistribute, CastsAroundTheMessages) {
  run_ranks(2, [](int) {
    const Sharding rows = on_world("tp=2 : S0 : 4x3");
    const at::Tensor full = at::arange(12, at::kFloat).reshape({4, 3});
    const at::Tensor part = part_of(full, rows, me(rows));
    comm::Recorder recorder(*comm::current_world());
    const at::Tensor half = redistribute(part, rows, rows.replicated().with_dtype(DType::bf16));
    EXPECT_EQ(half.scalar_type(), at::kBFloat16);
    EXPECT_EQ(recorder.events().back().dtype, at::kBFloat16);
    const at::Tensor back =
        redistribute(part, rows, rows.replicated(), {.wire_dtype = at::kBFloat16});
    EXPECT_EQ(back.scalar_type(), at::kFloat);
    EXPECT_EQ(recorder.events().back().dtype, at::kBFloat16);
    EXPECT_TRUE(at::equal(back, full));
    const at::Tensor wide = redistribute(part, rows, rows.replicated().with_dtype(DType::f64));
    EXPECT_EQ(wide.scalar_type(), at::kDouble);
    EXPECT_EQ(recorder.events().back().dtype, at::kFloat);
  });
}

TEST(Redistribute, RunsAsynchronously) {
  run_ranks(4, [](int) {
    const Sharding from = on_world("a=2,b=2 : S0,P(sum) : 6x4");
    const Sharding to = on_world("a=2,b=2 : R,S1 : 6x4");
    test::Rng rng(3);
    const at::Tensor full = test::random_whole_numbers(rng, {6, 4}, at::kFloat);
    const at::Tensor part = part_of(full, from, me(from));
    exec::Pending one = exec::redistribute_async(part, from, to);
    exec::Pending two = exec::redistribute_async(part, from, from.replicated());
    expect_part(one.wait(), full, to);
    expect_part(two.wait(), full, from.replicated());
    EXPECT_TRUE(two.done());
    EXPECT_THROW(two.wait(), InvalidArgument);
  });
}

TEST(Redistribute, EachStepIsOneCollectiveOnItsAxis) {
  run_ranks(4, [](int) {
    const Sharding from = on_world("dp=2,tp=2 : S0,S1 : 8x8");
    const at::Tensor part = at::ones({4, 4});
    comm::Recorder recorder(*comm::current_world());
    redistribute(part, from, from.with(1, Replicate()));
    EXPECT_EQ(comm::expect_comm(recorder, "1 all_gather on tp, 0 implicit"), "");
    recorder.clear();
    redistribute(part, from, from.with(0, Shard(1)));
    EXPECT_EQ(comm::expect_comm(recorder, "1 all_to_all on dp"), "");
    recorder.clear();
    redistribute(at::ones({8, 8}), from.replicated(), from);
    EXPECT_EQ(comm::expect_comm(recorder, "nothing"), "");
  });
}

TEST(Redistribute, MovesBetweenMeshes) {
  run_ranks(4, [](int rank) {
    const at::Tensor full = at::arange(30, at::kFloat).reshape({5, 6});
    const auto mesh = [](const char* text) { return comm::init_device_mesh(text); };
    const DeviceMesh first = mesh("a=2@0,1");
    const DeviceMesh last = mesh("b=2@2,3");
    const DeviceMesh all = mesh("x=2,y=2");
    const DeviceMesh turned = mesh("x=2,y=2@3,1,2,0");
    const auto sharding = [&](const DeviceMesh& m, const char* placements) {
      return Sharding(m, parse_placements(placements), {5, 6});
    };
    const std::vector<std::pair<Sharding, Sharding>> moves = {
        {sharding(first, "S0"), sharding(last, "S1")},
        {sharding(first, "R"), sharding(last, "R")},
        {sharding(first, "P(sum)"), sharding(last, "S0")},
        {sharding(first, "S1"), sharding(all, "S0,S1")},
        {sharding(all, "S0,R"), sharding(last, "S0")},
        {sharding(all, "S0,S1"), sharding(turned, "S0,S1")},
        {sharding(all, "P(sum),S1"), sharding(turned, "R,S0")},
    };
    for (const auto& [from, to] : moves) {
      SCOPED_TRACE(join_text("rank ", rank, ": ", from, " -> ", to));
      const bool holds = from.mesh().contains_me();
      const at::Tensor part = holds ? part_of(full, from, me(from)) : at::ones({0, 0});
      const at::Tensor got = redistribute(part, from, to);
      if (to.mesh().contains_me()) expect_part(got, full, to);
    }
  });
}

TEST(Redistribute, RejectsALocalTensorOfTheWrongShape) {
  try {
    run_ranks(2, [](int) {
      const Sharding rows = on_world("tp=2 : S0 : 5x3");
      redistribute(at::ones({4, 3}), rows, rows.replicated());
    });
    FAIL() << "no error";
  } catch (const InvalidArgument& error) {
    EXPECT_NE(std::string(error.what()).find("4x3"), std::string::npos) << error.what();
  }
}

TEST(Redistribute, GivesShapesOnFakeRanks) {
  const auto world = comm::fake_world(17, 1024);
  const DeviceMesh mesh = comm::init_device_mesh("dp=32,tp=32", world);
  const Sharding from(mesh, {Shard(0), Shard(1)}, {4096, 2048});
  const at::Tensor part = at::ones({128, 64}, at::kMeta);
  EXPECT_EQ(redistribute(part, from, from.replicated()).sizes(), at::IntArrayRef({4096, 2048}));
  const Sharding to(mesh, {Shard(1), Shard(0)}, {4096, 2048});
  EXPECT_EQ(redistribute(part, from, to).sizes(), at::IntArrayRef({128, 64}));
}

TEST(Redistribute, NothingOfAWorldIsKeptWhenItsRanksHaveEnded) {
  const size_t plans = plan::cache_stats().entries;
  const size_t programs = exec::cached_programs();
  const size_t before = live_shardings();
  std::weak_ptr<const World> world;
  run_ranks(2, [&](int rank) {
    const Sharding rows = on_world("tp=2 : S0 : 4x3");
    redistribute(at::ones({2, 3}), rows, rows.replicated());
    if (rank == 0) world = rows.mesh().world();
  });
  EXPECT_EQ(plan::cache_stats().entries, plans);
  EXPECT_EQ(exec::cached_programs(), programs);
  EXPECT_EQ(live_shardings(), before);
  EXPECT_TRUE(world.expired());
}

TEST(Redistribute, ReachesRandomTargetsOnThreadRanks) {
  test::for_each_seed(300, [](test::Rng& rng) {
    const DeviceMesh paper = test::random_mesh(rng, 3, 8);
    const auto shape = test::random_shape(rng, 4, 200);
    const test::RandomOptions no_partial{.partial = false};
    const Sharding from_paper = test::random_sharding(rng, paper, shape);
    const Sharding to_paper = test::random_sharding(rng, paper, shape, no_partial);
    // Averages need a type that divides, bit operations one that has bits.
    bool bits = false;
    for (const auto& p : from_paper.placements()) {
      const ReduceOp op = p.reduce_op();
      bits |=
          p.is_partial() && (op == ReduceOp::band || op == ReduceOp::bor || op == ReduceOp::bxor);
    }
    const at::ScalarType dtype = bits ? at::kLong : at::kDouble;
    const at::Tensor full = test::random_whole_numbers(rng, shape, dtype);
    run_ranks(paper.size(), [&](int) {
      const auto mesh = comm::init_device_mesh(paper.to_text());
      const Sharding from = from_paper.with_mesh(mesh).with_dtype(static_cast<DType>(dtype));
      const Sharding to = to_paper.with_mesh(mesh).with_dtype(static_cast<DType>(dtype));
      SCOPED_TRACE(join_text(from, " -> ", to));
      expect_part(redistribute(part_of(full, from, me(from)), from, to), full, to);
    });
  });
}

/// The cache of programs is keyed by addresses; those of shardings that it does not hold would come
/// back as others'.
TEST(Redistribute, ProgramsHoldBothShardingsOfTheirKey) {
  run_ranks(2, [](int) {
    const Sharding from = on_world("tp=2 : S0 : 4x6");
    const at::Tensor full = at::arange(24, at::kFloat).view({4, 6});
    const at::Tensor mine = part_of(full, from, me(from));
    for (int i = 0; i < 20; ++i) {
      const Sharding::Node* id = nullptr;
      {
        const Sharding columns = from.with(0, Shard(1));
        id = columns.id();
        expect_part(redistribute(mine, from, columns), full, columns);
      }
      plan::forget_plans(from.mesh().world().get());
      const Sharding whole = from.replicated();
      EXPECT_NE(whole.id(), id) << "an address in use";
      expect_part(redistribute(mine, from, whole), full, whole);
    }
  });
}

TEST(Redistribute, AMeshThatWasOnlyParsedHasNoRanksToMoveBetween) {
  const Sharding from = Sharding::parse("tp=2 : S0 : 4x6");
  const at::Tensor part = at::ones({2, 6});
  EXPECT_THROW(redistribute(part, from, from.replicated()), InvalidArgument);
  EXPECT_THROW(redistribute(part, from, from.with(0, Shard(1))), InvalidArgument);
  EXPECT_TRUE(redistribute(part, from, from).is_same(part));
}

TEST(Redistribute, OrdersUnsignedNumbersOf64Bits) {
  run_ranks(2, [](int rank) {
    const auto reduced = [&](ReduceOp op) {
      const Sharding from = on_world("tp=2 : R : 2").with_dtype(DType::u64).with(0, Partial(op));
      at::Tensor mine = at::empty({2}, at::kUInt64);
      auto* values = static_cast<uint64_t*>(mine.mutable_data_ptr());
      values[0] = rank == 0 ? 3 : (uint64_t{1} << 63) + 5;
      values[1] = rank == 0 ? ~uint64_t{0} : 7;
      const at::Tensor got = redistribute(mine, from, from.replicated());
      const auto* out = static_cast<const uint64_t*>(got.const_data_ptr());
      return std::pair{out[0], out[1]};
    };
    EXPECT_EQ(reduced(ReduceOp::max), std::pair((uint64_t{1} << 63) + 5, ~uint64_t{0}));
    EXPECT_EQ(reduced(ReduceOp::min), std::pair(uint64_t{3}, uint64_t{7}));
    EXPECT_EQ(reduced(ReduceOp::sum), std::pair((uint64_t{1} << 63) + 8, uint64_t{6}));
  });
}

TEST(Redistribute, AddsBeforeItCastsToWhatCannotHoldTheAddends) {
  run_ranks(2, [](int rank) {
    const Sharding from = on_world("tp=2 : R : 3").with(0, Partial());
    const at::Tensor mine =
        rank == 0 ? at::tensor({0.5f, 1.5f, -1.0f}) : at::tensor({0.5f, 1.5f, 1.0f});
    for (const at::ScalarType dtype : {at::kChar, at::kBool, at::kInt, at::kLong, at::kBFloat16}) {
      const at::Tensor want = at::tensor({1.0f, 3.0f, 0.0f}).to(dtype);
      for (const Sharding& to : {from.replicated(), from.replicated().with(0, Shard(0))}) {
        const Sharding target = to.with_dtype(static_cast<DType>(dtype));
        expect_part(redistribute(mine, from, target), want, target);
        expect_part(exec::redistribute_async(mine, from, target).wait(), want, target);
      }
    }
  });
}

}  // namespace redistribute_test
}  // namespace tessera
