#include "tessera/interp/sharded_program.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <fstream>

#include "tests/support/ranks.h"
#include "tests/support/sharded_programs.h"
#include "tests/support_pure/expect_error.h"
#include "tests/support_pure/temp_dir.h"

namespace tessera {
namespace {

using test::expect_error;
using test::TempDir;

void expect_same_as_whole(const std::filesystem::path& directory) {
  test::run_ranks(2, [&](int) {
    ShardedProgram sharded = ShardedProgram::load(directory);
    Program whole = Program::load("tests/program/data/linear.pt2");
    for (int run = 0; run < 3; ++run) {
      const at::Tensor x = at::arange(12.0F).view({4, 3}) * (run + 1);
      const at::Tensor expected = whole.run({x})[0].toTensor();
      EXPECT_TRUE(at::allclose(sharded.run({x})[0].toTensor(), expected));
      const auto named = sharded.run_named({{"input", x}});
      ASSERT_EQ(named.size(), 1U);
      EXPECT_EQ(named[0].first, "output");
      EXPECT_TRUE(at::allclose(named[0].second.toTensor(), expected));
    }
  });
}

TEST(ShardedProgram, GathersAnOutputThatIsInParts) {
  const TempDir dir;
  test::write_columns(dir / "linear");
  expect_same_as_whole(dir / "linear");
}

TEST(ShardedProgram, RunsCollectivesOnItsGroups) {
  const TempDir dir;
  test::write_rows(dir / "linear");
  expect_same_as_whole(dir / "linear");
}

TEST(ShardedProgram, SlicesAnInputThatItWantsInParts) {
  const TempDir dir;
  test::write_batch(dir / "linear");
  expect_same_as_whole(dir / "linear");
}

TEST(ShardedProgram, RefusesAWorldOfAnotherSize) {
  const TempDir dir;
  test::write_columns(dir / "linear");
  expect_error<InvalidArgument>([&] { ShardedProgram::load(dir / "linear"); },
                                {"sharded for tp=2", "2 ranks, but there are 1"});
}

TEST(ShardedProgram, RefusesInputsOfAnotherShape) {
  const TempDir dir;
  test::write_batch(dir / "linear");
  test::run_ranks(2, [&](int) {
    ShardedProgram sharded = ShardedProgram::load(dir / "linear");
    expect_error<InvalidArgument>([&] { sharded.run({at::zeros({6, 3})}); }, {"input", "6x3"});
    expect_error<InvalidArgument>([&] { sharded.run(Program::Values()); }, {"takes 1 inputs"});
  });
}

TEST(ShardedProgram, RefusesAManifestOfAnotherProgram) {
  const TempDir dir;
  test::write_columns(dir / "linear");
  auto manifest = partition::Manifest::read(dir / "linear");
  manifest.inputs[0].name = "x";
  std::ofstream((dir / "linear") / partition::kManifestName) << manifest.to_json();
  test::run_ranks(2, [&](int) {
    expect_error<InvalidArgument>([&] { ShardedProgram::load(dir / "linear"); },
                                  {"input: f32 4x3 is not in the manifest"});
  });
}

}  // namespace
}  // namespace tessera
