#include <gtest/gtest.h>

#include "tessera/mesh/device_mesh.h"
#include "tests/support_pure/expect_error.h"
#include "tests/support_pure/random_shardings.h"

namespace tessera {
namespace mesh_text_test {

using test::expect_error;
using test::for_each_seed;
using test::Rng;

TEST(MeshText, HasOneFormForEveryWayToWriteAMesh) {
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"dp=2,tp=4", "dp=2,tp=4"},
      {"  dp = 2 ,\ttp= 4 ", "dp=2,tp=4"},
      {"cuda:dp=8", "cuda:dp=8"},
      {"cpu:dp=8", "dp=8"},
      {"cuda : tp = 1", "cuda:tp=1"},
      {"tp=4@0,1,2,3", "tp=4"},
      {"tp=4@0-3", "tp=4"},
      {"tp=4@1-4", "tp=4@1-4"},
      {"tp=2@1-2", "tp=2@1,2"},
      {"dp=2,tp=2@0,2,4-5", "dp=2,tp=2@0,2,4,5"},
      {"dp=2,tp=4@0,2,4-7,9,8", "dp=2,tp=4@0,2,4-7,9,8"},
      {"dp=3@2,1,0", "dp=3@2,1,0"},
      {"dp=1@5-5", "dp=1@5"},
      {"_a=1,b_2=3", "_a=1,b_2=3"},
      {"mesh-0=2,a.b=1,dp/fs=2@4-7", "mesh-0=2,a.b=1,dp/fs=2@4-7"},
      {"cuda:mesh-0=2", "cuda:mesh-0=2"},
  };
  for (const auto& [text, canonical] : cases) {
    EXPECT_EQ(DeviceMesh::parse(text).to_text(), canonical) << text;
  }
}

TEST(MeshText, ReadsWhatItWrites) {
  for_each_seed(500, [](Rng& rng) {
    const auto plain = test::random_mesh(rng, 4, 60);
    const auto mesh = rng.chance(30) ? plain : test::with_random_ranks(rng, plain);
    const DeviceMesh with_device({mesh.axes().begin(), mesh.axes().end()},
                                 {mesh.ranks().begin(), mesh.ranks().end()},
                                 rng.one_of<std::string>({"cpu", "cuda", "meta"}));
    EXPECT_EQ(DeviceMesh::parse(with_device.to_text()), with_device) << with_device.to_text();
  });
}

TEST(MeshText, DoesNotSayWhoLooks) {
  const DeviceMesh mesh = DeviceMesh::parse("dp=2");
  EXPECT_EQ(mesh.with_own_rank(1).to_text(), "dp=2");
  EXPECT_EQ(DeviceMesh::parse(mesh.with_own_rank(1).to_text()), mesh);
}

TEST(MeshText, SaysWhatIsWrongWithAText) {
  struct Case {
    std::string text;
    std::string says;
  };
  const std::vector<Case> cases = {
      {"", "expected the name of a mesh axis or a device at position 0, found the end"},
      {"dp", "cannot read \"dp\": expected '=' at position 2, found the end"},
      {"dp=", "expected the size of a mesh axis at position 3"},
      {"dp=x", "expected the size of a mesh axis at position 3, found 'x'"},
      {"=2", "expected the name of a mesh axis or a device at position 0, found '='"},
      {"2=2", "expected the name of a mesh axis or a device at position 0, found '2'"},
      {"dp=0", "mesh axis dp has size 0 in \"dp=0\""},
      {"dp=-2", "mesh axis dp has size -2"},
      {"dp=99999999999", "mesh axis dp has size 99999999999"},
      {"dp=99999999999999999999", "64 bits"},
      {"dp=2147483647", "more than 16777216 ranks"},
      {"dp=2,", "expected the name of a mesh axis at position 5, found the end"},
      {"dp=2 tp=2", "expected the end at position 5, found 't'"},
      {"dp=2;tp=2", "expected the end at position 4, found ';'"},
      {"dp=2,dp=2", "two mesh axes are called dp"},
      {"cuda:", "expected the name of a mesh axis at position 5, found the end"},
      {"cuda:0:dp=2", "expected the name of a mesh axis at position 5, found '0'"},
      {"dp=2@", "expected a rank at position 5, found the end"},
      {"dp=2@0", "hold 2 ranks but 1 are listed"},
      {"dp=2@0,0", "rank 0 twice"},
      {"dp=2@0,-1", "are not a range of ranks"},
      {"dp=2@1-0", "ranks 1-0 are not a range of ranks"},
      {"dp=2@0-", "expected the last rank of a range at position 7, found the end"},
      {"dp=2@0-4294967296", "are not a range of ranks"},
      {"dp=2@0-2147483647", "more than 16777216 ranks"},
      {"dp=2@0-16777215,1", "more than 16777216 ranks"},
      {"dp=2@0,1 : R", "expected the end at position 9, found ':'"},
  };
  for (const auto& [text, says] : cases) {
    SCOPED_TRACE(text);
    expect_error<InvalidArgument>([&] { DeviceMesh::parse(text); }, {says});
  }
}

}  // namespace mesh_text_test
}  // namespace tessera
