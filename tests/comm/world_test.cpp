// Worlds, their groups, and the meshes made over them.
#include "tessera/comm/world.h"

#include "tessera/base/errors.h"
#include "tessera/comm/fake.h"
#include "tessera/comm/threads.h"
#include "tests/comm/rank_data.h"
#include "tests/support_pure/expect_error.h"

namespace tessera {
namespace world_test {

using comm::fake_world;
using comm::group_of;
using comm::init_device_mesh;
using comm::mesh_from_groups;
using comm::run_ranks;
using test::everyone;
using test::expect_error;
using test::iota;
using test::same;
using test::Tensors;

TEST(World, GroupsAreKeptAndFoundByTheirRanks) {
  const auto world = fake_world(2, 8);
  const auto group = world->group(iota(4));
  EXPECT_EQ(world->group(iota(4)), group);
  EXPECT_EQ(group->index(), 2);
  EXPECT_EQ(group->size(), 4);
  EXPECT_NE(world->group(std::vector<int>{3, 2, 1, 0}), group);
  EXPECT_EQ(world->group(std::vector<int>{3, 2, 1, 0})->index(), 1);
}

TEST(World, GroupsThatMakeNoSenseAreRefused) {
  const auto world = fake_world(2, 8);
  expect_error<InvalidArgument>([&] { world->group(iota(2)); }, {"rank 2", "ranks 0,1", "not in"});
  expect_error<InvalidArgument>([&] { world->group(std::vector<int>{2, 3, 2}); }, {"twice"});
  expect_error<InvalidArgument>([&] { world->group(std::vector<int>{2, 8}); }, {"world of 8"});
  expect_error<InvalidArgument>([&] { world->group(std::vector<int>{-1, 2}); }, {"world of 8"});
  expect_error<NotSupported>([&] { world->group(iota(8))->backend(c10::DeviceType::Lazy); },
                             {"serves", "cpu", "lazy"});
  expect_error<InvalidArgument>([] { fake_world(4, 4); }, {"rank 4 of 4"});
}

TEST(World, AMeshHasAGroupForEachAxisAndAnyCombination) {
  run_ranks(8, [](int rank) {
    const int sizes[] = {2, 2, 2};
    const std::string names[] = {"pp", "dp", "tp"};
    const auto mesh = init_device_mesh("cpu", sizes, names);
    EXPECT_EQ(mesh.my_rank(), rank);
    const auto tp = group_of(mesh, "tp");
    EXPECT_EQ(tp->size(), 2);
    EXPECT_EQ(tp->index(), rank % 2);
    const int both[] = {2, 0};
    const auto tp_pp = group_of(mesh, both);
    Tensors t = {at::full({1}, rank, at::kLong)};
    tp_pp->backend(at::kCPU).allreduce(t)->wait();
    const int dp = rank / 2 % 2;
    EXPECT_EQ(t[0].item<int64_t>(), 0 + 1 + 4 + 5 + 4 * 2 * dp);
    // Submeshes and flattened meshes live in the same world and find the same groups.
    EXPECT_EQ(group_of(mesh["tp"], "tp"), tp);
    EXPECT_EQ(group_of(mesh.flatten("all"), "all")->size(), 8);
  });
}

TEST(World, RanksOutsideAMeshGetItToo) {
  run_ranks(5, [](int rank) {
    const auto mesh = init_device_mesh("dp=2,tp=2");
    EXPECT_EQ(mesh.contains_me(), rank < 4);
    const auto pair = init_device_mesh("tp=2@3,4");
    EXPECT_EQ(pair.contains_me(), rank >= 3);
    if (rank == 4) {
      expect_error<InvalidArgument>([&] { group_of(mesh, "dp"); }, {"rank 4 is outside", "dp=2"});
      EXPECT_EQ(group_of(pair, "tp")->index(), 1);
    }
  });
}

TEST(World, AMeshLargerThanItsWorldIsRefused) {
  run_ranks(2, [](int) {
    expect_error<InvalidArgument>([] { init_device_mesh("dp=2,tp=2"); },
                                  {"dp=2,tp=2", "needs rank 2", "has 2 ranks"});
  });
}

TEST(World, AMeshOnPaperHasNoGroups) {
  expect_error<InvalidArgument>([] { group_of(DeviceMesh::parse("dp=2"), "dp"); },
                                {"belongs to no world"});
}

TEST(World, AMeshOverExistingGroupsUsesThem) {
  run_ranks(4, [](int rank) {
    const auto mesh = init_device_mesh("dp=2,tp=2");
    const std::vector<c10::intrusive_ptr<c10d::ProcessGroup>> groups = {
        group_of(mesh, "dp")->process_group(), group_of(mesh, "tp")->process_group()};
    const auto again = mesh_from_groups(DeviceMesh::parse("a=2,b=2"), rank, 4, groups);
    EXPECT_EQ(comm::world_of(again).kind(), comm::RankWorld::Kind::external);
    Tensors t = {at::full({1}, rank, at::kLong)};
    group_of(again, "b")->backend(at::kCPU).allreduce(t)->wait();
    EXPECT_EQ(t[0].item<int64_t>(), rank < 2 ? 1 : 5);
    const int both[] = {0, 1};
    expect_error<NotSupported>([&] { group_of(again, both); }, {"no group of ranks 0-3"});

    const std::vector<c10::intrusive_ptr<c10d::ProcessGroup>> one = {groups[0]};
    expect_error<InvalidArgument>(
        [&] { mesh_from_groups(DeviceMesh::parse("a=2,b=2"), rank, 4, one); },
        {"2 axes", "1 process"});
    const std::vector<c10::intrusive_ptr<c10d::ProcessGroup>> all = {everyone(4)->process_group()};
    expect_error<InvalidArgument>([&] { mesh_from_groups(DeviceMesh::parse("a=2"), rank, 4, all); },
                                  {rank < 2 ? "has size 4" : "outside"});
  });
}

TEST(World, AxesOfOneRankNeedNoLinks) {
  run_ranks(2, [](int rank) {
    const auto mesh = init_device_mesh("pp=1,dp=2,cp=1");
    Tensors t = {at::full({1}, rank, at::kLong)};
    group_of(mesh, "pp")->backend(at::kCPU).allreduce(t)->wait();
    EXPECT_EQ(t[0].item<int64_t>(), rank);
    EXPECT_EQ(group_of(mesh, "pp"), group_of(mesh, "cp"));
  });
}

TEST(World, ACoordinatorMayGuardAWorldOfItsOwn) {
  const auto world = fake_world(0, 2);
  {
    comm::WorldGuard guard(world);
    EXPECT_EQ(comm::current_world(), world);
  }
  EXPECT_NE(comm::current_world(), world);
}

}  // namespace world_test
}  // namespace tessera
