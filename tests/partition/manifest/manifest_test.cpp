#include "tessera/partition/manifest/manifest.h"

#include <gtest/gtest.h>

#include <fstream>

#include "tests/support_pure/expect_error.h"
#include "tests/support_pure/temp_dir.h"

namespace tessera::partition {
namespace manifest_test {

using tessera::test::expect_error;

Manifest example() {
  Manifest out;
  out.source = "mlp.pt2";
  out.mesh = DeviceMesh::parse("dp=2,tp=2");
  for (int rank = 0; rank < 4; ++rank) {
    out.ranks.push_back({rank, "rank_" + std::to_string(rank) + ".pt2", "model"});
  }
  out.groups = {{"0", {0, 1, 2, 3}}, {"1", {0, 1}}, {"2", {2, 3}}};
  out.inputs = {{"x", DType::f32, {8, -1}, {Shard(0), Replicate()}}};
  out.outputs = {{"output", DType::bf16, {}, {Replicate(), Replicate()}}};
  return out;
}

/// The example with one piece of its text replaced.
std::string changed(std::string_view from, std::string_view to) {
  std::string text = example().to_json();
  const size_t at = text.find(from);
  EXPECT_NE(at, std::string::npos) << from;
  return text.replace(at, from.size(), to);
}

void expect_refused(std::string_view from, std::string_view to, std::string_view why) {
  expect_error<InvalidArgument>([&] { Manifest::parse(changed(from, to), "m.json"); },
                                {"m.json", why});
}

TEST(Manifest, GivesBackWhatWasWritten) {
  const Manifest read = Manifest::parse(example().to_json(), "m.json");
  EXPECT_EQ(read.to_json(), example().to_json());
  EXPECT_EQ(read.mesh, DeviceMesh::parse("dp=2,tp=2"));
  EXPECT_EQ(read.program_of(3).file, "rank_3.pt2");
  EXPECT_EQ(read.groups[2].ranks, (std::vector<int>{2, 3}));
  EXPECT_EQ(read.inputs[0].shape, (std::vector<int64_t>{8, -1}));
  EXPECT_EQ(read.outputs[0].dtype, DType::bf16);
  expect_error<InvalidArgument>([&] { (void)read.program_of(4); }, {"rank 4", "dp=2,tp=2"});
}

TEST(Manifest, SaysHowAnInputOfSomeShapeIsSharded) {
  const Manifest manifest = example();
  EXPECT_EQ(manifest.inputs[0].sharding(manifest.mesh, {8, 5}),
            Sharding::parse("dp=2,tp=2 : S0,R : 8x5"));
  expect_error<InvalidArgument>(
      [&] {
        (void)manifest.inputs[0].sharding(manifest.mesh, {6, 5});
      },
      {"x is 6x5", "8x-1"});
  expect_error<InvalidArgument>([&] { (void)manifest.inputs[0].sharding(manifest.mesh, {8}); },
                                {"x is 8"});
}

TEST(Manifest, FilesStayInTheDirectory) {
  for (const char* name : {"../rank_0.pt2", "/etc/passwd", "a/b.pt2", "..", ".", "", "a\\\\b"}) {
    expect_refused("\"rank_0.pt2\"", "\"" + std::string(name) + "\"", "ranks[0].file");
  }
  expect_refused("\"model\": \"model\"", "\"model\": \"../x\"", "ranks[0].model");
}

TEST(Manifest, RefusesWhatDoesNotFitTheMesh) {
  expect_refused("\"dp=2,tp=2\"", "\"dp=2\"", "ranks");
  expect_refused("\"dp=2,tp=2\"", "\"dp=2,tp\"", "mesh");
  expect_refused("\"rank\": 1", "\"rank\": 0", "ranks[1]");
  expect_refused("\"rank\": 1", "\"rank\": 7", "ranks[1].rank");
  expect_refused("\"S0,R\"", "\"S2,R\"", "inputs[0].placements");
  expect_refused("\"S0,R\"", "\"S0\"", "inputs[0].placements");
  expect_refused("\"S0,R\"", "\"P(sum),R\"", "partial");
  expect_refused("\"S0,R\"", "\"Q\"", "inputs[0].placements");
  expect_refused("\"bf16\"", "\"f12\"", "outputs[0].dtype");
  expect_refused("\"name\": \"1\"", "\"name\": \"0\"", "groups[1]");
  expect_refused("\"version\": 1", "\"version\": 2", "version");
  expect_refused("tessera.sharded_program", "other", "format");
  expect_error<InvalidArgument>([] { Manifest::parse("{", "m.json"); }, {"m.json"});
  expect_error<InvalidArgument>([] { Manifest::parse("[]", "m.json"); }, {"m.json"});
}

TEST(Manifest, OfADirectoryNamesFiles) {
  const tessera::test::TempDir dir;
  std::ofstream(dir / "manifest.json") << changed("\"file\": \"rank_2.pt2\",", "");
  expect_error<InvalidArgument>([&] { Manifest::read(dir.path()); }, {"rank 2 has no file"});
}

TEST(Manifest, IsReadFromItsDirectory) {
  const tessera::test::TempDir dir;
  EXPECT_FALSE(is_sharded_program(dir.path()));
  expect_error<InvalidArgument>([&] { Manifest::read(dir.path()); }, {"manifest.json"});
  std::ofstream(dir / "manifest.json") << example().to_json();
  EXPECT_TRUE(is_sharded_program(dir.path()));
  EXPECT_EQ(Manifest::read(dir.path()).source, "mlp.pt2");
}

}  // namespace manifest_test
}  // namespace tessera::partition
