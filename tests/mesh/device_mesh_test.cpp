#include "tessera/mesh/device_mesh.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <thread>
#include <unordered_set>

#include "tessera/mesh/mesh_node.h"
#include "tests/support_pure/expect_error.h"
#include "tests/support_pure/random_shardings.h"

namespace tessera {
namespace device_mesh_test {

using test::expect_error;
using test::for_each_seed;
using test::Rng;

using Ranks = std::vector<int>;

Ranks ranks_of(const DeviceMesh& mesh) { return {mesh.ranks().begin(), mesh.ranks().end()}; }

class TinyWorld : public World {
 public:
  TinyWorld(int rank, int size) : rank_(rank), size_(size) {}
  int rank() const override { return rank_; }
  int size() const override { return size_; }

 private:
  int rank_;
  int size_;
};

TEST(DeviceMesh, CountsRanksRowMajor) {
  const DeviceMesh mesh({{"dp", 2}, {"tp", 4}});
  EXPECT_EQ(mesh.ndim(), 2);
  EXPECT_EQ(mesh.size(), 8);
  EXPECT_EQ(mesh.size(0), 2);
  EXPECT_EQ(mesh.size(1), 4);
  EXPECT_EQ(mesh.axis_name(1), "tp");
  EXPECT_EQ(mesh.axis("tp"), 1);
  EXPECT_TRUE(mesh.has_axis("dp"));
  EXPECT_FALSE(mesh.has_axis("pp"));
  EXPECT_EQ(mesh.device(), "cpu");
  EXPECT_EQ(ranks_of(mesh), (Ranks{0, 1, 2, 3, 4, 5, 6, 7}));
  EXPECT_EQ(mesh.rank_at({1, 2}), 6);
  EXPECT_EQ(mesh.coordinate_of(6), (Coordinate{1, 2}));
}

TEST(DeviceMesh, HoldsAnyDistinctRanks) {
  const DeviceMesh mesh({{"dp", 2}, {"tp", 2}}, {7, 3, 0, 12}, "cuda");
  EXPECT_EQ(mesh.device(), "cuda");
  EXPECT_EQ(mesh.rank_at({0, 1}), 3);
  EXPECT_EQ(mesh.coordinate_of(12), (Coordinate{1, 1}));
  EXPECT_EQ(mesh.coordinate_of(1), std::nullopt);
  EXPECT_EQ(mesh.coordinate_of(-1), std::nullopt);
}

TEST(DeviceMesh, RankAndCoordinateAreInverse) {
  for_each_seed(200, [](Rng& rng) {
    const auto mesh = test::with_random_ranks(rng, test::random_mesh(rng, 4, 60));
    const auto coordinates = test::all_coordinates(mesh);
    ASSERT_EQ(std::ssize(coordinates), mesh.size());
    for (size_t i = 0; i < coordinates.size(); ++i) {
      EXPECT_EQ(mesh.rank_at(coordinates[i]), mesh.ranks()[i]);
      EXPECT_EQ(mesh.coordinate_of(mesh.ranks()[i]), coordinates[i]);
    }
  });
}

TEST(DeviceMesh, OfOneRankHasOneOfEverything) {
  const DeviceMesh mesh = DeviceMesh({{"dp", 1}, {"tp", 1}}).with_own_rank(0);
  EXPECT_EQ(mesh.size(), 1);
  EXPECT_EQ(mesh.my_coordinate(), (Coordinate{0, 0}));
  EXPECT_EQ(mesh.groups("dp"), (std::vector<Ranks>{{0}}));
  EXPECT_EQ(mesh.groups({0, 1}), (std::vector<Ranks>{{0}}));
  EXPECT_EQ(mesh["tp"].size(), 1);
  EXPECT_EQ(mesh.flatten("all").to_text(), "all=1");
}

TEST(DeviceMesh, OnPaperNamesItsAxesByNumber) {
  EXPECT_EQ(mesh_without_world(std::vector<int>{2, 3}).to_text(), "axis0=2,axis1=3");
  EXPECT_EQ(
      mesh_without_world(std::vector<int>{2}, std::vector<std::string>{"tp"}, "cuda").to_text(),
      "cuda:tp=2");
  expect_error<InvalidArgument>(
      [] {
        mesh_without_world(std::vector<int>{2, 3}, std::vector<std::string>{"tp"});
      },
      {"2 axes", "1 names"});
}

TEST(DeviceMesh, EqualMeshesAreOneObject) {
  const DeviceMesh a({{"dp", 2}, {"tp", 2}});
  const DeviceMesh b = DeviceMesh::parse("dp=2,tp=2");
  EXPECT_EQ(a, b);
  EXPECT_EQ(a.id(), b.id());
  EXPECT_EQ(a.hash(), b.hash());
  EXPECT_EQ(std::unordered_set<DeviceMesh>({a, b}).size(), 1U);
}

TEST(DeviceMesh, EqualityLooksAtEveryPartOfTheValue) {
  const DeviceMesh mesh({{"dp", 2}, {"tp", 2}});
  const auto world = std::make_shared<TinyWorld>(1, 4);
  const std::vector<DeviceMesh> different = {
      mesh,
      DeviceMesh({{"dp", 2}, {"ep", 2}}),
      DeviceMesh({{"tp", 2}, {"dp", 2}}),
      DeviceMesh({{"dp", 4}, {"tp", 1}}),
      DeviceMesh({{"dp", 2}, {"tp", 2}}, {0, 1, 3, 2}),
      DeviceMesh({{"dp", 2}, {"tp", 2}}, "cuda"),
      mesh.with_own_rank(0),
      mesh.with_own_rank(1),
      mesh.in_world(world),
      mesh.in_world(std::make_shared<TinyWorld>(1, 4)),
      DeviceMesh(),
  };
  for (size_t i = 0; i < different.size(); ++i) {
    for (size_t j = 0; j < different.size(); ++j) {
      EXPECT_EQ(different[i] == different[j], i == j) << i << " " << j;
      if (!different[i].defined() || !different[j].defined()) continue;
      // Also where two hashes collide.
      EXPECT_EQ(*different[i].id() == *different[j].id(), i == j) << i << " " << j;
    }
  }
  EXPECT_EQ(mesh.in_world(world), mesh.with_own_rank(3).in_world(world));
}

TEST(DeviceMesh, LetsGoOfItsMemory) {
  const size_t before = mesh_table().size();
  {
    const DeviceMesh mesh({{"dp", 2}, {"tp", 3}});
    const auto parts = mesh.with_own_rank(4).all_submeshes(std::vector<std::string>{"tp"});
    EXPECT_GT(mesh_table().size(), before);
  }
  EXPECT_EQ(mesh_table().size(), before);
}

TEST(DeviceMesh, KeepsItsWorldAliveAndNoLonger) {
  auto world = std::make_shared<TinyWorld>(0, 2);
  const std::weak_ptr<TinyWorld> watch = world;
  DeviceMesh mesh = DeviceMesh({{"tp", 2}}).in_world(std::move(world))["tp"];
  EXPECT_FALSE(watch.expired());
  mesh = DeviceMesh();
  EXPECT_TRUE(watch.expired());
}

TEST(DeviceMesh, SeenFromARankKnowsItsPlace) {
  const DeviceMesh mesh({{"dp", 2}, {"tp", 4}});
  EXPECT_EQ(mesh.my_rank(), std::nullopt);
  EXPECT_FALSE(mesh.contains_me());
  const DeviceMesh mine = mesh.with_own_rank(6);
  EXPECT_EQ(mine.my_rank(), 6);
  EXPECT_EQ(mine.my_coordinate(), (Coordinate{1, 2}));
  EXPECT_EQ(mine.local_rank(1), 2);
  EXPECT_EQ(mine.local_rank("dp"), 1);
  EXPECT_EQ(mine.world(), nullptr);
  EXPECT_EQ(mine.to_text(), "dp=2,tp=4");
}

TEST(DeviceMesh, SeenFromARankOutsideHasNoPlaceForIt) {
  const DeviceMesh mesh = DeviceMesh({{"tp", 2}}, {2, 3}).with_own_rank(0);
  EXPECT_EQ(mesh.my_rank(), 0);
  EXPECT_FALSE(mesh.contains_me());
  expect_error<InvalidArgument>([&] { mesh.local_rank("tp"); }, {"rank 0", "outside", "tp=2@2,3"});
}

TEST(DeviceMesh, InAWorldIsSeenFromTheWorldsRank) {
  const auto world = std::make_shared<TinyWorld>(3, 8);
  const DeviceMesh mesh = DeviceMesh({{"dp", 2}, {"tp", 4}}).in_world(world);
  EXPECT_EQ(mesh.world(), world);
  EXPECT_EQ(mesh.my_coordinate(), (Coordinate{0, 3}));
  EXPECT_EQ(mesh["dp"].world(), world);
  EXPECT_EQ(mesh.with_own_rank(3).world(), nullptr);
  // A mesh may leave out ranks of its world, also mine.
  EXPECT_FALSE(DeviceMesh({{"tp", 2}}).in_world(world).contains_me());
}

TEST(DeviceMesh, GroupsAlongAnAxisAreItsLines) {
  const DeviceMesh mesh({{"dp", 2}, {"tp", 3}});
  EXPECT_EQ(mesh.groups("tp"), (std::vector<Ranks>{{0, 1, 2}, {3, 4, 5}}));
  EXPECT_EQ(mesh.groups("dp"), (std::vector<Ranks>{{0, 3}, {1, 4}, {2, 5}}));
  EXPECT_EQ(mesh.groups({0, 1}), (std::vector<Ranks>{{0, 1, 2, 3, 4, 5}}));
  EXPECT_EQ(mesh.groups({1, 0}), (std::vector<Ranks>{{0, 3, 1, 4, 2, 5}}));
  EXPECT_EQ(mesh.groups(std::initializer_list<int>{}),
            (std::vector<Ranks>{{0}, {1}, {2}, {3}, {4}, {5}}));
  EXPECT_EQ(mesh.group({1}, 4), (Ranks{3, 4, 5}));
  EXPECT_EQ(mesh.group({0}, 4), (Ranks{1, 4}));
}

TEST(DeviceMesh, GroupsPartitionTheRanks) {
  for_each_seed(200, [](Rng& rng) {
    const auto mesh = test::with_random_ranks(rng, test::random_mesh(rng, 4, 60));
    std::vector<int> axes;
    for (int axis = 0; axis < mesh.ndim(); ++axis) {
      if (rng.chance(50)) axes.push_back(axis);
    }
    rng.shuffle(axes);
    size_t size = 1;
    for (int axis : axes) size *= static_cast<size_t>(mesh.size(axis));
    std::set<int> seen;
    for (const auto& group : mesh.groups(axes)) {
      ASSERT_EQ(group.size(), size);
      for (int rank : group) {
        EXPECT_TRUE(seen.insert(rank).second) << rank << " is in two groups";
        EXPECT_EQ(mesh.group(axes, rank), group);
        auto coordinate = *mesh.coordinate_of(rank);
        auto first = *mesh.coordinate_of(group.front());
        for (int axis : axes)
          first[static_cast<size_t>(axis)] = coordinate[static_cast<size_t>(axis)];
        EXPECT_EQ(coordinate, first) << "differs on another axis";
      }
    }
    EXPECT_EQ(std::ssize(seen), mesh.size());
  });
}

TEST(DeviceMesh, ThreadsThatMakeTheSameMeshesGetTheSameObjects) {
  const DeviceMesh root({{"dp", 2}, {"tp", 4}});
  std::vector<std::thread> threads;
  std::vector<std::vector<DeviceMesh>> made(4);
  for (auto& mine : made) {
    threads.emplace_back([&root, &mine] {
      for (int rank = 0; rank < 200; ++rank) {
        mine.push_back(root.with_own_rank(rank % 8)[rank % 2 == 0 ? "dp" : "tp"]);
        root.with_own_rank(rank);
      }
    });
  }
  for (auto& thread : threads) thread.join();
  for (const auto& mine : made) EXPECT_EQ(mine, made[0]);
}

TEST(DeviceMesh, SaysWhatIsWrongWithAMesh) {
  const DeviceMesh mesh({{"dp", 2}, {"tp", 4}});
  const auto bad = [](const auto& f, std::initializer_list<std::string_view> parts) {
    expect_error<InvalidArgument>(f, parts);
  };
  bad([] { DeviceMesh(std::vector<MeshAxis>{}); }, {"at least one axis"});
  bad([] { DeviceMesh({{"dp", 0}}); }, {"axis dp has size 0"});
  bad([] { DeviceMesh({{"dp", 2}, {"tp", -3}}); }, {"axis tp has size -3"});
  bad([] { DeviceMesh({{"dp", 2}, {"dp", 2}}); }, {"two mesh axes are called dp"});
  bad([] { DeviceMesh({{"", 2}}); }, {"\"\" cannot name a mesh axis"});
  bad([] { DeviceMesh({{" dp", 2}}); }, {"\" dp\" cannot name a mesh axis"});
  bad([] { DeviceMesh({{"d p", 2}}); }, {"\"d p\" cannot name a mesh axis"});
  bad([] { DeviceMesh({{"2d", 2}}); }, {"\"2d\" cannot name a mesh axis", "like dp"});
  bad([] { DeviceMesh({{"dp", 2}}, "cuda:0"); }, {"\"cuda:0\" is no kind of device"});
  bad([] { DeviceMesh({{"dp", 2}}, ""); }, {"\"\" is no kind of device"});
  bad([] { DeviceMesh({{"dp", 2}}, {0, 1, 2}); }, {"hold 2 ranks but 3 are listed"});
  bad([] { DeviceMesh({{"dp", 2}}, {4, 4}); }, {"rank 4 twice"});
  bad([] { DeviceMesh({{"dp", 2}}, {0, -1}); }, {"rank -1"});
  bad(
      [] {
        DeviceMesh({{"a", INT32_MAX}, {"b", INT32_MAX}, {"c", INT32_MAX}});
      },
      {"more than 16777216 ranks"});
  bad(
      [] {
        DeviceMesh({{"a", INT32_MAX}, {"b", INT32_MAX}, {"c", INT32_MAX}}, Ranks{0});
      },
      {"more than 16777216 ranks"});
  bad([&] { mesh.axis("pp"); }, {"no axis \"pp\"", "dp=2,tp=4"});
  bad([&] { mesh.size(2); }, {"axis 2", "dp=2,tp=4", "has 2 axes"});
  bad([&] { mesh.axis_name(-1); }, {"axis -1", "dp=2,tp=4"});
  bad([&] { mesh.rank_at({1}); }, {"a coordinate of 1 numbers", "dp=2,tp=4"});
  bad([&] { mesh.rank_at({1, 4}); }, {"coordinate 4 on axis tp", "dp=2,tp=4"});
  bad([&] { mesh.rank_at({-1, 0}); }, {"coordinate -1 on axis dp"});
  bad([&] { mesh.local_rank(0); }, {"has no rank of its own", "with_own_rank"});
  bad([&] { mesh.with_own_rank(-2); }, {"not negative", "-2"});
  bad([&] { mesh.in_world(nullptr); }, {"no world"});
  bad([&] { mesh.in_world(std::make_shared<TinyWorld>(0, 6)); },
      {"dp=2,tp=4", "rank 6", "6 ranks"});
  bad([&] { mesh.group({0}, 8); }, {"rank 8 is outside", "dp=2,tp=4"});
  bad([&] { mesh.group({5}, 0); }, {"axis 5"});
  bad([&] { mesh.groups({1, 1}); }, {"1,1", "twice"});
  bad([&] { mesh.groups("pp"); }, {"no axis \"pp\""});
}

TEST(DeviceMesh, WithoutAMeshEveryUseIsAnErrorNotACrash) {
  const DeviceMesh none;
  EXPECT_FALSE(none.defined());
  EXPECT_EQ(none, DeviceMesh());
  EXPECT_EQ(none.to_text(), "(no mesh)");
  const auto undefined = [](const auto& f) {
    expect_error<InvalidArgument>(f, {"an undefined mesh was used"});
  };
  undefined([&] { none.ndim(); });
  undefined([&] { none.ranks(); });
  undefined([&] { none.my_coordinate(); });
  undefined([&] { none.with_own_rank(0); });
  undefined([&] { none.in_world(std::make_shared<TinyWorld>(0, 1)); });
  undefined([&] { none.groups("dp"); });
  undefined([&] { none["dp"]; });
  undefined([&] { none.all_submeshes(std::vector<std::string>{"dp"}); });
  undefined([&] { none.flatten({"dp"}, "x"); });
  undefined([&] { none.flatten("x"); });
  undefined([&] { none.unflatten("dp", {{"a", 1}}); });
  undefined([&] { DeviceMesh::concatenate({none}); });
}

}  // namespace device_mesh_test
}  // namespace tessera
