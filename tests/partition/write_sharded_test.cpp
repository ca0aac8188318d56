#include "tessera/partition/write_sharded.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>

#include "tessera/program/verify.h"
#include "tests/partition/greedy_assignment.h"
#include "tests/support_pure/expect_error.h"
#include "tests/support_pure/temp_dir.h"

namespace tessera::partition {
namespace write_sharded_test {

using program::Archive;
using program::ExportedProgram;
using tessera::test::expect_error;
using tessera::test::TempDir;
using test::greedy_assignment;
using test::Marks;

const std::filesystem::path kData = "tests/program/data";
const DeviceMesh kThree = DeviceMesh::parse("tp=3");
const Marks kBlock = {{"embed.weight", "S0"},
                      {"head.weight", "S0"},
                      {"qkv.weight", "S1"},
                      {"qkv.bias", "S0"},
                      {"out.weight", "S1"}};

std::vector<float> floats(std::span<const std::byte> bytes) {
  std::vector<float> out(bytes.size() / sizeof(float));
  std::memcpy(out.data(), bytes.data(), bytes.size());
  return out;
}

/// A directory with `block` over three ranks.
struct Sharded {
  std::shared_ptr<const Archive> archive = Archive::open(kData / "block.pt2");
  ExportedProgram program = archive->read_program();
  Assignment assignment = greedy_assignment(program, kThree, kBlock);
  TempDir temp;
  std::filesystem::path directory = temp / "out";

  void write(const WriteOptions& options = {}) {
    write_sharded(*archive, program, assignment, directory, options);
  }
  std::shared_ptr<const Archive> rank(int r) const {
    return Archive::open(directory / ("rank_" + std::to_string(r) + ".pt2"));
  }
};

TEST(WriteSharded, RanksHoldTheirPartsOfTheWeights) {
  Sharded sharded;
  sharded.write();
  const auto whole = floats(
      sharded.archive->bytes_of_weight(*sharded.program.find_payload("qkv.weight")));  // 24x8
  for (int rank = 0; rank < 3; ++rank) {
    const auto archive = sharded.rank(rank);
    const ExportedProgram local = archive->read_program();
    EXPECT_EQ(program::problems_of(local), std::vector<std::string>());
    const auto part = floats(archive->bytes_of_weight(*local.find_payload("qkv.weight")));
    std::vector<float> expected;
    for (int64_t row = 0; row < 24; ++row) {
      for (int64_t column = 3 * rank; column < std::min(8, 3 * rank + 3); ++column) {
        expected.push_back(whole[static_cast<size_t>(row * 8 + column)]);
      }
    }
    EXPECT_EQ(part, expected) << rank;
  }
}

TEST(WriteSharded, TiedWeightsStayTied) {
  Sharded sharded;
  sharded.write();
  const auto archive = sharded.rank(1);
  const ExportedProgram local = archive->read_program();
  const auto* embed = local.find_payload("embed.weight");
  const auto* head = local.find_payload("head.weight");
  EXPECT_EQ(embed->path_name, head->path_name);
  EXPECT_EQ(archive->bytes_of_weight(*embed).size(), 4U * 8 * sizeof(float));  // 10 rows: 4,4,2
}

TEST(WriteSharded, AliasesThatAreShardedOtherwiseGetRecordsOfTheirOwn) {
  Sharded sharded;
  sharded.assignment =
      greedy_assignment(sharded.program, kThree, {{"embed.weight", "S1"}, {"head.weight", "S0"}});
  sharded.write();
  const ExportedProgram local = sharded.rank(0)->read_program();
  EXPECT_NE(local.find_payload("embed.weight")->path_name,
            local.find_payload("head.weight")->path_name);
  EXPECT_EQ(program::problems_of(local), std::vector<std::string>());
}

TEST(WriteSharded, TheManifestDescribesTheDirectory) {
  Sharded sharded;
  uint64_t total = 0;
  uint64_t written = 0;
  sharded.write({.progress = [&](const WriteProgress& progress) {
    total = progress.total;
    written = progress.bytes;
  }});
  EXPECT_EQ(written, total);
  EXPECT_GT(total, 0U);
  const Manifest manifest = Manifest::read(sharded.directory);
  EXPECT_EQ(manifest.source, "block.pt2");
  EXPECT_EQ(manifest.ranks.size(), 3U);
  std::vector<std::string> names;
  for (const auto& tensor : manifest.inputs) names.push_back(tensor.name);
  for (const auto& tensor : manifest.outputs) names.push_back(tensor.name);
  EXPECT_EQ(names, (std::vector<std::string>{"tokens", "extra.shift", "logits", "best.0", "best.1",
                                             "ramp"}));
}

TEST(WriteSharded, NothingIsLeftAfterAnError) {
  Sharded sharded;
  const auto names = [&] {
    std::vector<std::string> out;
    for (const auto& entry : std::filesystem::directory_iterator(sharded.temp.path())) {
      out.push_back(entry.path().filename().string());
    }
    return out;
  };
  // Before anything is written.
  sharded.assignment.nodes[1].kernel = "moments";
  EXPECT_THROW(sharded.write(), NotSupported);
  EXPECT_EQ(names(), std::vector<std::string>());
  // While it is written.
  sharded.assignment = greedy_assignment(sharded.program, kThree, kBlock);
  EXPECT_THROW(sharded.write({.progress = [](const WriteProgress&) { throw 1; }}), int);
  EXPECT_EQ(names(), std::vector<std::string>());
}

TEST(WriteSharded, ADirectoryIsNotOverwrittenUnlessAsked) {
  Sharded sharded;
  sharded.write();
  expect_error<InvalidArgument>([&] { sharded.write(); }, {"out", "exists"});
  sharded.write({.overwrite = true});
  std::filesystem::remove(sharded.directory / "manifest.json");
  expect_error<InvalidArgument>([&] { sharded.write({.overwrite = true}); },
                                {"not a sharded program"});
}

/// The same in one file.
struct SingleFile : Sharded {
  SingleFile() { directory = temp / "out.pt2"; }
  void write(WriteOptions options = {}) {
    options.single_file = true;
    Sharded::write(options);
  }
};

TEST(WriteSharded, ASingleFileHoldsThePartsOfAllRanks) {
  Sharded parts;
  parts.write();
  SingleFile single;
  single.write();
  const auto archive = Archive::open(single.directory);
  EXPECT_EQ(archive->models(), (std::vector<std::string>{"rank_0", "rank_1", "rank_2"}));
  for (int rank = 0; rank < 3; ++rank) {
    const auto alone = parts.rank(rank);
    const ExportedProgram expected = alone->read_program();
    const ExportedProgram found = archive->read_program(join_text("rank_", rank));
    EXPECT_EQ(program::problems_of(found), std::vector<std::string>());
    ASSERT_EQ(found.weights.size(), expected.weights.size());
    for (size_t i = 0; i < found.weights.size(); ++i) {
      EXPECT_EQ(floats(archive->bytes_of_weight(found.weights[i])),
                floats(alone->bytes_of_weight(expected.weights[i])))
          << rank << " " << found.weights[i].name;
    }
    for (size_t i = 0; i < found.constants.size(); ++i) {
      EXPECT_TRUE(std::ranges::equal(archive->bytes_of_constant(found.constants[i]),
                                     alone->bytes_of_constant(expected.constants[i])));
    }
  }
  const Manifest manifest = Manifest::read(single.directory);
  EXPECT_EQ(manifest.program_of(2).model, "rank_2");
  EXPECT_EQ(manifest.program_of(2).file_in(single.directory), single.directory);
  expect_error<InvalidArgument>([&] { (void)archive->read_program(); }, {"no program 'model'"});
}

// 4 ranks, of which two and two hold the same shards.
TEST(WriteSharded, ASingleFileStoresOnceWhatRanksHoldAlike) {
  SingleFile single;
  single.assignment = greedy_assignment(single.program, DeviceMesh::parse("dp=2,tp=2"),
                                        {{"embed.weight", "R,S0"}, {"head.weight", "R,S0"}});
  uint64_t total = 0;
  uint64_t written = 0;
  single.write({.progress = [&](const WriteProgress& progress) {
    total = progress.total;
    written = progress.bytes;
  }});
  EXPECT_EQ(written, total);
  const auto archive = Archive::open(single.directory);
  const auto record_of = [&](int rank, const char* name) {
    return archive->read_program(join_text("rank_", rank)).find_payload(name)->path_name;
  };
  EXPECT_EQ(record_of(0, "embed.weight"), record_of(2, "embed.weight"));
  EXPECT_EQ(record_of(1, "embed.weight"), record_of(3, "embed.weight"));
  EXPECT_NE(record_of(0, "embed.weight"), record_of(1, "embed.weight"));
  EXPECT_EQ(record_of(0, "qkv.weight"), record_of(3, "qkv.weight"));  // replicated
  uint64_t weights = 0;
  for (const auto& record : single.archive->zip().records()) {
    const bool is_weight = record.name.find("data/weights/weight_") != std::string::npos;
    const bool is_constant = record.name.find("data/constants/tensor_") != std::string::npos;
    if (is_weight || is_constant) weights += record.size;
  }
  EXPECT_EQ(written, weights);  // nothing is there twice
}

TEST(WriteSharded, ASingleFileIsReplacedOnlyIfItIsASharded) {
  SingleFile single;
  EXPECT_THROW(single.write({.progress = [](const WriteProgress&) { throw 1; }}), int);
  EXPECT_TRUE(std::filesystem::is_empty(single.temp.path()));
  single.write();
  expect_error<InvalidArgument>([&] { single.write(); }, {"out.pt2", "exists"});
  single.write({.overwrite = true});
  std::filesystem::copy_file(kData / "block.pt2", single.directory,
                             std::filesystem::copy_options::overwrite_existing);
  expect_error<InvalidArgument>([&] { single.write({.overwrite = true}); },
                                {"not a sharded program"});
  std::filesystem::remove(single.directory);
  static_cast<Sharded&>(single).write();  // a directory of that name
  expect_error<InvalidArgument>([&] { single.write({.overwrite = true}); }, {"is a directory"});
}

TEST(WriteSharded, RanksCountFromZero) {
  Sharded sharded;
  sharded.assignment = greedy_assignment(sharded.program, DeviceMesh::parse("tp=3@1,2,3"), kBlock);
  expect_error<InvalidArgument>([&] { sharded.write(); }, {"ranks 0 to 2"});
}

}  // namespace write_sharded_test
}  // namespace tessera::partition
