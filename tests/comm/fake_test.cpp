#include "tessera/comm/fake.h"

#include "tessera/base/errors.h"
#include "tests/comm/rank_data.h"
#include "tests/support_pure/expect_error.h"

namespace tessera {
namespace fake_test {

using comm::fake_world;
using comm::init_device_mesh;
using test::iota;
using test::same;
using test::Tensors;

TEST(Fake, AMillionRanksCostNothing) {
  const auto world = fake_world(123'456, 1'000'000);
  EXPECT_EQ(world->rank(), 123'456);
  const int sizes[] = {1000, 1000};
  const auto mesh = init_device_mesh("meta", sizes, {}, world);
  EXPECT_EQ(mesh.local_rank(0), 123);
  EXPECT_EQ(mesh.local_rank(1), 456);
  const auto group = comm::group_of(mesh, "axis0");
  EXPECT_EQ(group->size(), 1000);
  EXPECT_EQ(group->index(), 123);
  EXPECT_LT(group->name().size(), 60U);
}

TEST(Fake, MetaTensorsKeepTheirShapes) {
  const auto world = fake_world(3, 8);
  auto& backend = world->group(iota(8))->backend(at::kMeta);
  const auto meta = at::TensorOptions().device(at::kMeta);
  at::Tensor in = at::empty({4, 2}, meta);
  at::Tensor out = at::empty({32, 2}, meta);
  auto work = backend._allgather_base(out, in);
  EXPECT_TRUE(work->isCompleted());
  EXPECT_TRUE(work->wait());
  EXPECT_EQ(work->getFuture()->value().toTensorVector()[0].sizes(), out.sizes());
  Tensors t = {in};
  EXPECT_TRUE(backend.allreduce(t)->wait());
  EXPECT_TRUE(backend.barrier()->wait());
}

TEST(Fake, RealTensorsGetTheOwnValueInEveryPlace) {
  const auto world = fake_world(1, 4);
  auto& backend = world->group(iota(4))->backend(at::kCPU);
  at::Tensor in = at::arange(2);
  at::Tensor out = at::full({8}, -1, at::kLong);
  backend._allgather_base(out, in)->wait();
  EXPECT_TRUE(same(out, in.repeat({4})));

  Tensors sum = {at::full({2}, 5.0)};
  backend.allreduce(sum)->wait();
  EXPECT_TRUE(same(sum[0], at::full({2}, 5.0)));

  at::Tensor whole = at::arange(8);
  at::Tensor chunk = at::empty({2}, at::kLong);
  backend._reduce_scatter_base(chunk, whole)->wait();
  EXPECT_TRUE(same(chunk, at::arange(2, 4)));

  at::Tensor swapped = at::full({8}, -1, at::kLong);
  std::vector<int64_t> none;
  backend.alltoall_base(swapped, whole, none, none)->wait();
  EXPECT_TRUE(same(swapped, at::arange(2, 4).repeat({4})));

  std::vector<Tensors> list = {{at::zeros({2}, at::kLong), at::zeros({3}, at::kLong),
                                at::zeros({2}, at::kLong), at::zeros({2}, at::kLong)}};
  Tensors mine = {in};
  backend.allgather(list, mine)->wait();
  EXPECT_TRUE(same(list[0][0], in));
  EXPECT_TRUE(same(list[0][1], at::zeros({3}, at::kLong)));  // does not fit: left alone
}

TEST(Fake, WrongSizesAreErrorsHereToo) {
  const auto world = fake_world(0, 4);
  auto& backend = world->group(iota(4))->backend(at::kCPU);
  at::Tensor in = at::ones({2});
  at::Tensor out = at::ones({7});
  test::expect_error<InvalidArgument>([&] { backend._allgather_base(out, in); },
                                      {"all_gather_into_tensor over 4 ranks", "7 Float"});
}

TEST(Fake, CodeMayRunAsIfOnThatRank) {
  comm::WorldGuard as(fake_world(5, 16));
  const auto mesh = init_device_mesh("dp=4,tp=4");
  EXPECT_EQ(mesh.local_rank("dp"), 1);
  EXPECT_EQ(mesh.local_rank("tp"), 1);
  EXPECT_EQ(comm::world_of(mesh).kind(), comm::RankWorld::Kind::fake);
}

}  // namespace fake_test
}  // namespace tessera
