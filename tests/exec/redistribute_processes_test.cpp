// The same moves as on thread ranks, between real processes over Gloo.
#include <ATen/ops/arange.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/ones.h>
#include <gtest/gtest.h>

#include "tessera/base/errors.h"
#include "tessera/comm/processes.h"
#include "tessera/comm/world.h"
#include "tessera/exec/redistribute.h"
#include "tests/support/parts.h"
#include "tests/support/processes.h"
#include "tests/support_pure/random_shardings.h"

namespace tessera {
namespace redistribute_processes_test {

using testing::failures;
using testing::run_processes;
using testing::Scenario;

/// Moves a fixed tensor along random shardings of meshes that fill the world; all ranks draw alike.
void move_along_random_shardings() {
  const auto world = comm::process_world();
  for (uint64_t seed = 1; seed <= 40; ++seed) {
    test::Rng rng(seed);
    DeviceMesh paper = test::random_mesh(rng, 3, world->size());
    while (paper.size() != world->size()) paper = test::random_mesh(rng, 3, world->size());
    const DeviceMesh mesh = comm::init_device_mesh(paper.to_text());
    const auto shape = test::random_shape(rng, 3, 200);
    const at::Tensor full = test::random_whole_numbers(rng, shape, at::kDouble);
    const test::RandomOptions no_partial{.partial = false};
    Sharding from =
        test::random_sharding(rng, paper, shape, no_partial).with_mesh(mesh).with_dtype(DType::f64);
    const Coordinate me = *mesh.my_coordinate();
    at::Tensor part = test::part_of(full, from, me);
    for (int step = 0; step < 3; ++step) {
      const Sharding to = test::random_sharding(rng, paper, shape, no_partial)
                              .with_mesh(mesh)
                              .with_dtype(DType::f64);
      SCOPED_TRACE(join_text("seed ", seed, ": ", from, " -> ", to));
      part = exec::redistribute(part, from, to);
      ASSERT_TRUE(at::equal(part, test::part_of(full, to, me)));
      from = to;
    }
    // And from partial values, which Gloo reduces.
    std::vector<Placement> sums(static_cast<size_t>(mesh.ndim()), Partial());
    const Sharding partial(mesh, sums, shape, {.dtype = DType::f64});
    const at::Tensor sum = exec::redistribute(test::part_of(full, partial, me), partial, from);
    ASSERT_TRUE(at::equal(sum, test::part_of(full, from, me))) << "seed " << seed;
  }
}

const Scenario kMoves("moves", move_along_random_shardings);

TEST(RedistributeProcesses, TwoReachEveryTarget) {
  EXPECT_EQ(failures(run_processes(kMoves, {.size = 2})), "");
}

TEST(RedistributeProcesses, ThreeReachEveryTarget) {
  EXPECT_EQ(failures(run_processes(kMoves, {.size = 3})), "");
}

TEST(RedistributeProcesses, FourReachEveryTarget) {
  EXPECT_EQ(failures(run_processes(kMoves, {.size = 4})), "");
}

/// So large that columns are packed while others are on their way, in every kind of element.
const Scenario kLarge("large", [] {
  const auto world = comm::process_world();
  const DeviceMesh mesh = comm::init_device_mesh(join_text("tp=", world->size()));
  for (const auto dtype : {at::kFloat, at::kBool, at::kComplexFloat}) {
    const auto code = static_cast<DType>(dtype);
    const std::vector<int64_t> shape = {1025, dtype == at::kBool ? 8191 : 2047};
    const at::Tensor full = at::arange(shape[0] * shape[1]).remainder(7).to(dtype).view(shape);
    const Sharding rows(mesh, {Shard(0)}, shape, {.dtype = code});
    const Sharding columns(mesh, {Shard(1)}, shape, {.dtype = code});
    const Coordinate me = *mesh.my_coordinate();
    const at::Tensor part = exec::redistribute(test::part_of(full, rows, me), rows, columns);
    EXPECT_TRUE(at::equal(part, test::part_of(full, columns, me))) << dtype;
    EXPECT_TRUE(at::equal(exec::redistribute(part, columns, rows), test::part_of(full, rows, me)))
        << dtype;
  }
});

TEST(RedistributeProcesses, LargeColumnsArePackedOnTheWay) {
  EXPECT_EQ(failures(run_processes(kLarge, {.size = 2})), "");
}

const Scenario kTypes("types", [] {
  const DeviceMesh mesh = comm::init_device_mesh("tp=2");
  for (const auto dtype : {at::kBool, at::kShort, at::kInt, at::kBFloat16, at::kComplexDouble}) {
    const auto code = static_cast<DType>(dtype);
    const Sharding rows(mesh, {Shard(0)}, {3, 4}, {.dtype = code});
    const at::Tensor full = at::ones({3, 4}, dtype);
    const at::Tensor part = test::part_of(full, rows, *mesh.my_coordinate());
    EXPECT_TRUE(at::equal(exec::redistribute(part, rows, rows.replicated()), full));
    const Sharding columns(mesh, {Shard(1)}, {3, 4}, {.dtype = code});
    EXPECT_EQ(exec::redistribute(part, rows, columns).sizes(), at::IntArrayRef({3, 2}));
    const Sharding partial(mesh, {Partial()}, {3, 4}, {.dtype = code});
    const at::Tensor sum = exec::redistribute(full, partial, partial.replicated());
    EXPECT_TRUE(at::equal(sum, dtype == at::kBool ? full : at::ones({3, 4}).mul(2).to(dtype)));
  }
});

TEST(RedistributeProcesses, CarryEveryElementType) {
  EXPECT_EQ(failures(run_processes(kTypes, {.size = 2})), "");
}

const Scenario kDeath("death", [] {
  const DeviceMesh mesh = comm::init_device_mesh("tp=3");
  const Sharding rows(mesh, {Shard(0)}, {6, 4});
  const at::Tensor part = at::ones({2, 4});
  exec::redistribute(part, rows, rows.replicated());
  testing::mark(mesh.my_rank() == 2 ? "kill me" : "alive");
  const std::string error = testing::error_of([&] {
    for (int i = 0; i < 100'000; ++i) exec::redistribute(part, rows, rows.replicated());
  });
  testing::mark("error: " + error);
});

TEST(RedistributeProcesses, AKilledRankEndsInAnErrorThatNamesRankOpAndGroup) {
  const auto results = run_processes(
      kDeath, {.size = 3, .kill_rank = 2, .environment = {{"TESSERA_TIMEOUT_S", "20"}}});
  for (const auto& result : results) {
    if (result.rank == 2) continue;
    EXPECT_TRUE(result.ok()) << result.to_text();
    EXPECT_TRUE(result.says("all_gather")) << result.to_text();
    EXPECT_TRUE(result.says("ranks 0,1,2")) << result.to_text();
    EXPECT_TRUE(result.says(join_text("rank ", result.rank))) << result.to_text();
  }
}

}  // namespace redistribute_processes_test
}  // namespace tessera
