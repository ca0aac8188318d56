// A list of placements says all that the sharding says: what it is given back to is the tensor.
#include <gtest/gtest.h>

#include "tessera/base/errors.h"
#include "tessera/comm/threads.h"
#include "tessera/dtensor/dtensor.h"
#include "tessera/observe/recorder.h"
#include "tests/support/parts.h"
#include "tests/support/ranks.h"
#include "tests/support_pure/expect_error.h"
#include "tests/support_pure/random_shardings.h"

namespace tessera {
namespace placements_test {

using comm::init_device_mesh;
using test::expect_error;
using test::for_each_seed;
using test::Rng;
using test::run_ranks;
using test::whole_numbers;

at::Tensor placed(const at::Tensor& full, const Sharding& as) {
  const std::vector<Placement> whole(static_cast<size_t>(as.mesh().ndim()));
  return redistribute(distribute_tensor(full, as.mesh(), whole), as);
}

TEST(Placements, OfAShardInAnotherOrderAreRecognised) {
  run_ranks(4, [](int) {
    const DeviceMesh mesh = init_device_mesh("dp=2,tp=2");
    const at::Tensor full = whole_numbers({8, 3});
    const at::Tensor x = placed(
        full, Sharding(mesh, {Shard(0), Shard(0)}, {8, 3}, {.dtype = DType::f64, .order = {1, 0}}));
    EXPECT_EQ(sharding(x).placements_text(), "S0#1,S0#0");
    EXPECT_EQ(placements_text(placements(x)), "SS0(2),S0");
    const at::Tensor again = from_local(to_local(x), mesh, placements(x));
    EXPECT_TRUE(at::equal(full_tensor(again), full));

    comm::Recorder recorder(*comm::current_world());
    EXPECT_TRUE(redistribute(x, placements(x)).is_same(x)) << "it is placed so already";
    EXPECT_TRUE(distribute_tensor(x, mesh, placements(x)).is_same(x));
    EXPECT_TRUE(at::equal(to_local(redistribute(again, sharding(x))), to_local(x)));
    EXPECT_TRUE(at::equal(to_local(again + x), to_local(x) * 2));
    EXPECT_EQ(recorder.events().size(), 0) << "both forms are one layout";
  });
}

TEST(Placements, GoRoundForAllShardings) {
  for (const char* axes : {"a=2,b=3", "a=3,b=2", "a=1,b=3,c=2"}) {
    run_ranks(6, [&](int) {
      const DeviceMesh mesh = init_device_mesh(axes);
      for_each_seed(120, [&](Rng& rng) {
        const auto shape = test::random_shape(rng, 3, 200);
        const Sharding as = test::random_sharding(rng, mesh, shape, {.partial = false});
        const at::Tensor full = whole_numbers(shape);
        const at::Tensor x = placed(full, as.with_dtype(DType::f64));
        std::vector<Placement> list;
        try {
          list = placements(x);
        } catch (const NotSupported&) {
          return;  // an error, not a loss
        }
        const auto check = [&](const at::Tensor& again, const char* how) {
          ASSERT_TRUE(at::equal(full_tensor(again), full)) << as.to_text() << " " << how;
          ASSERT_TRUE(at::equal(to_local(again), to_local(x))) << as.to_text() << " " << how;
        };
        check(from_local(to_local(x), mesh, list, {.shape = shape}), "from_local with a shape");
        check(from_local(to_local(x), mesh, list), "from_local, measured");
        check(distribute_tensor(full, mesh, list), "distribute_tensor");
        check(redistribute(x, list), "redistribute");
        check(redistribute(x, mesh, list), "redistribute on the mesh");
      });
    });
  }
}

TEST(Placements, OfAStridedShardAreKeptByFromLocal) {
  run_ranks(4, [](int rank) {
    const DeviceMesh mesh = init_device_mesh("tp=4");
    const at::Tensor full = whole_numbers({10});
    const at::Tensor x = distribute_tensor(full, mesh, {StridedShard(0, 2)});  // 4,4,2,0
    EXPECT_TRUE(at::equal(full_tensor(from_local(to_local(x), mesh, {StridedShard(0, 2)})), full));
    expect_error<InvalidArgument>(
        [&] { from_local(whole_numbers({rank < 2 ? 3 : 2}), mesh, {StridedShard(0, 2)}); },
        {"from_local as SS0(2)", "3,3,2,2", "RaggedShard"});
    expect_error<InvalidArgument>(
        [&] { from_local(whole_numbers({1}), mesh, {StridedShard(0, 4)}, {.even = true}); },
        {"from_local", "SS0(4)"});
  });
}

}  // namespace placements_test
}  // namespace tessera
