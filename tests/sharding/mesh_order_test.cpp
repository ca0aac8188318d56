#include "tessera/sharding/mesh_order.h"

#include <gtest/gtest.h>

#include "tessera/sharding/local_shape.h"
#include "tests/support_pure/expect_error.h"
#include "tests/support_pure/index_oracle.h"
#include "tests/support_pure/random_shardings.h"

namespace tessera {
namespace mesh_order_test {

using test::expect_error;
using test::for_each_seed;
using test::Rng;

std::string in_mesh_order(std::string_view sharding) {
  return placements_text(placements_in_mesh_order(Sharding::parse(sharding)));
}

TEST(MeshOrder, IsPyTorchsStridedShardWhereThatIsExact) {
  EXPECT_EQ(in_mesh_order("dp=2,tp=2 : S0#1,S0#0 : 8x16"), "SS0(2),S0");
  EXPECT_EQ(in_mesh_order("dp=2,tp=4 : S1#1,S1#0 : 8x16"), "SS1(4),S1");
  EXPECT_EQ(in_mesh_order("pp=2,dp=2,tp=2 : S0,S1#1,S1#0 : 8x16"), "S0,SS1(2),S1");
  EXPECT_EQ(in_mesh_order("a=2,b=2,c=2 : S0#2,S0#1,S0#0 : 8"), "SS0(4),SS0(2),S0");
  EXPECT_EQ(in_mesh_order("a=2,b=2,c=2 : S0#1,S0#2,S0#0 : 8"), "SS0(2),SS0(2),S0");
  EXPECT_EQ(in_mesh_order("dp=4,tp=2 : S0#1,S0#0 : 10"), "SS0(2),S0") << "2,2,1,0 twice";
  EXPECT_EQ(in_mesh_order("dp=2,tp=2 : S0#1,S0#0 : 5"), "SS0(2),S0") << "2,1 and 1,1";
}

TEST(MeshOrder, LeavesListsInMeshOrderAlone) {
  for (const char* text : {"S0,S0", "S0,S1", "R,P(sum)", "SS0(2),S0", "S0[3,5],S1"}) {
    EXPECT_EQ(in_mesh_order(join_text("dp=2,tp=2 : ", text, " : 8x16")), text);
  }
}

TEST(MeshOrder, IsARaggedShardInsideWherePartsAreUneven) {
  EXPECT_EQ(in_mesh_order("dp=3,tp=2 : S0#1,S0#0 : 7"), "SS0(2),S0[2,1,2,1,0,1]");
  EXPECT_EQ(in_mesh_order("dp=2,tp=2 : S0#1,S0[4,4]#0 : 8"), "SS0(2),S0") << "ragged in name only";
}

TEST(MeshOrder, RefusesWhatNoListSays) {
  expect_error<NotSupported>([] { in_mesh_order("a=2,b=2,c=2 : S0#2,S0#1,S0#0 : 5"); },
                             {"a=2,b=2,c=2 : S0#2,S0#1,S0#0 : 5", "dim 0", "use the sharding"});
  expect_error<NotSupported>([] { in_mesh_order("dp=2,tp=2 : S0[1,3,2,2]#1,S0#0 : 8"); },
                             {"S0[1,3,2,2]#1,S0#0"});
}

TEST(MeshOrder, EveryRankHoldsWhatTheShardingSays) {
  int cases = 0, reordered = 0, refused = 0;
  for_each_seed(2000, [&](Rng& rng) {
    ++cases;
    const DeviceMesh mesh = test::random_mesh(rng, 3);
    const Sharding sharding = test::random_sharding(rng, mesh, test::random_shape(rng, 3));
    std::vector<Placement> list;
    try {
      list = placements_in_mesh_order(sharding);
    } catch (const NotSupported&) {
      ++refused;
      return;
    }
    reordered += sharding.has_default_order() ? 0 : 1;
    const Sharding read = sharding.with_placements(list);
    ASSERT_TRUE(read.has_default_order());
    for (const Coordinate& at : test::all_coordinates(mesh)) {
      ASSERT_EQ(test::oracle_elements(read, at), test::oracle_elements(sharding, at))
          << sharding.to_text() << " as " << read.to_text();
    }
  });
  EXPECT_GT(reordered, cases / 40);
  EXPECT_LT(refused, cases / 20);
}

}  // namespace mesh_order_test
}  // namespace tessera
