// Damaged programs, sharded: every change ends in programs of ranks or in an error of the library,
// never in a crash or another exception.
//
//   build/tests/test_pure --file=tests/partition/fuzz_test.cpp        10 s
//   TESSERA_FUZZ_SECONDS=600 TESSERA_FUZZ_SEED=7 build/tests/...      ten minutes
//
// A crash leaves the file that caused it: $TMPDIR/tessera_XXXXXX/mutated.pt2.
#include <gtest/gtest.h>

#include <chrono>

#include "tessera/base/errors.h"
#include "tessera/partition/partition.h"
#include "tests/support_pure/damaged_program.h"
#include "tests/support_pure/temp_dir.h"

namespace tessera::partition {
namespace fuzz_test {

using tessera::test::from_environment;
using tessera::test::TempDir;

struct Counts {
  int sharded = 0;
  int refused = 0;
};

void try_partition(const TempDir& dir, const DeviceMesh& mesh, Counts& counts) {
  const Plan plan = Plan::parse(R"({"rest": "auto"})", "plan");
  try {
    const PartitionedProgram program = partition(dir / "mutated.pt2", mesh, plan);
    for (int rank = 0; rank < static_cast<int>(mesh.size()); ++rank)
      program.save_rank(rank, dir / "rank.pt2");
    ++counts.sharded;
  } catch (const Error&) {
    ++counts.refused;
  }
}

TEST(Fuzz, DamagedProgramsAreShardedOrRefused) {
  const TempDir dir;
  const uint64_t seed = from_environment("TESSERA_FUZZ_SEED", 1);
  const auto end = std::chrono::steady_clock::now() +
                   std::chrono::seconds(from_environment("TESSERA_FUZZ_SECONDS", 10));
  const std::vector<DeviceMesh> meshes = {DeviceMesh::parse("tp=2"), DeviceMesh::parse("tp=3")};
  Counts counts;
  for (uint64_t i = 0; std::chrono::steady_clock::now() < end; ++i) {
    std::mt19937_64 random(seed * 1000003 + i);
    const std::string from = tessera::test::write_damaged_program(dir / "mutated.pt2", random);
    SCOPED_TRACE("seed " + std::to_string(seed) + ", change " + std::to_string(i) + " of " + from);
    const auto begin = std::chrono::steady_clock::now();
    EXPECT_NO_THROW(try_partition(dir, meshes[random() % meshes.size()], counts));
    EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(20));
    if (::testing::Test::HasFailure()) {
      const auto kept = std::filesystem::temp_directory_path() / "tessera_fuzz_sharded.pt2";
      const auto replace = std::filesystem::copy_options::overwrite_existing;
      std::filesystem::copy_file(dir / "mutated.pt2", kept, replace);
      FAIL() << "kept as " << kept;
    }
  }
  std::printf("%d programs were sharded, %d refused\n", counts.sharded, counts.refused);
  EXPECT_GT(counts.sharded, 10);
  EXPECT_GT(counts.refused, 10);
}

}  // namespace fuzz_test
}  // namespace tessera::partition
