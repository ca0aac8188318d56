// State of a mesh's value, while mesh objects come and go.
#include "tessera/mesh/per_mesh.h"

#include <gtest/gtest.h>

#include <memory>
#include <set>
#include <string>
#include <vector>

#include "tests/support_pure/property.h"

namespace tessera {
namespace per_mesh_test {

class TinyWorld : public World {
 public:
  int rank() const override { return 0; }
  int size() const override { return 8; }
};

std::shared_ptr<const World> make_world() { return std::make_shared<TinyWorld>(); }

DeviceMesh mesh_in(const std::shared_ptr<const World>& world, const std::string& text) {
  return DeviceMesh::parse(text).in_world(world);
}

TEST(PerMesh, AStateIsOfAMeshAndItsAxes) {
  const auto world = make_world();
  PerMesh<int> states;
  states.of(mesh_in(world, "dp=2,tp=2"), 1) = 5;
  EXPECT_EQ(states.of(mesh_in(world, "dp=2,tp=2"), 1), 5);
  EXPECT_EQ(states.of(mesh_in(world, "dp=2,tp=2"), 2), 0);
  for (const char* other : {"dp=2,ep=2", "tp=2,dp=2", "dp=4,tp=1", "dp=2,tp=2@0,1,3,2"}) {
    EXPECT_EQ(states.of(mesh_in(world, other), 1), 0) << other;
  }
  EXPECT_EQ(states.of(mesh_in(world, "cuda:dp=2,tp=2"), 1), 0);
  EXPECT_EQ(states.of(mesh_in(make_world(), "dp=2,tp=2"), 1), 0);
}

TEST(PerMesh, AMeshAtAnAddressOfAnotherDoesNotGetItsState) {
  const auto world = make_world();
  PerMesh<int> states;
  std::set<const DeviceMesh::Node*> addresses;
  for (int i = 0; i < 50; ++i) {
    const DeviceMesh mesh = mesh_in(world, "m" + std::to_string(i) + "=2");
    addresses.insert(mesh.id());
    EXPECT_EQ(++states.of(mesh, 1), 1) << mesh.to_text();
  }
  if (addresses.size() == 50) GTEST_SKIP() << "no address came back, as under sanitizers";
}

/// Of two ranks, one holds its meshes longer.
TEST(PerMesh, AStateIsTheSameWhetherItsMeshWasHeldOrMadeAgain) {
  test::for_each_seed(20, [](test::Rng& rng) {
    const auto world = make_world();
    PerMesh<int> holds, frees;
    std::vector<DeviceMesh> held;
    for (int i = 0; i < 200; ++i) {
      const std::string text = "m" + std::to_string(rng.between(0, 19)) + "=2";
      if (rng.chance(25)) held.clear();
      held.push_back(mesh_in(world, text));
      const int count = ++holds.of(held.back(), 1);
      if (rng.chance(50)) held.clear();
      EXPECT_EQ(++frees.of(mesh_in(world, text), 1), count) << text;
    }
  });
}

TEST(PerMesh, AnAddressStaysWithItsStateAmongMany) {
  const auto world = make_world();
  PerMesh<int> states;
  const auto mesh = [&](int i) { return mesh_in(world, "m" + std::to_string(i) + "=2"); };
  std::vector<int*> made;
  for (int i = 0; i < 40; ++i) made.push_back(&states.of(mesh(i), 1));
  for (int turn = 0; turn < 10; ++turn) {
    for (int i = turn; i < 40; i += 1 + turn) {
      const DeviceMesh held = mesh(i);
      for (int call = 0; call < 3; ++call) EXPECT_EQ(&states.of(held, 1), made[i]) << i;
    }
  }
}

TEST(PerMesh, AStateKeepsNoWorldAliveAndIsRemovedAfterIt) {
  const auto lives = std::make_shared<int>();
  PerMesh<std::shared_ptr<int>> states;
  auto world = make_world();
  const std::weak_ptr<const World> ended = world;
  states.of(mesh_in(world, "tp=2"), 1) = lives;
  world.reset();
  EXPECT_TRUE(ended.expired());
  const auto next = make_world();
  EXPECT_EQ(states.of(mesh_in(next, "tp=2"), 1), nullptr);
  EXPECT_EQ(lives.use_count(), 1);
}

/// As planning does, which has no peers.
TEST(PerMesh, AMeshWithoutAWorldHasAStateForNow) {
  PerMesh<int> states;
  const DeviceMesh mesh = DeviceMesh::parse("tp=2");
  EXPECT_EQ(++states.of(mesh, 1), 1);
  EXPECT_EQ(++states.of(mesh, 1), 2);
}

}  // namespace per_mesh_test
}  // namespace tessera
