#include "tessera/dcp/rank_metadata.h"

#include <gtest/gtest.h>

#include <fstream>

#include "tessera/base/errors.h"
#include "tests/support_pure/expect_error.h"
#include "tests/support_pure/temp_dir.h"

namespace tessera::dcp {
namespace rank_metadata_test {

using test::expect_error;
using test::TempDir;

TensorEntry rows(int64_t begin, int64_t end, const std::string& file) {
  return {DType::f32, {4, 2}, {{Box{{begin, 0}, {end, 2}}, {file, 0, 100}}}};
}

Metadata of_rank(int rank) {
  const std::string file = "__" + std::to_string(rank) + "_0.distcp";
  Metadata out;
  out.entries["w"] = rows(2 * rank, 2 * rank + 2, file);
  out.entries["copy"] = rows(0, 4, file);
  out.entries["step"] = ValueEntry{{file, 200, 10}};
  return out;
}

std::string file_of(const Metadata& metadata, const std::string& name) {
  const Entry& entry = metadata.entries.at(name);
  if (const auto* value = std::get_if<ValueEntry>(&entry)) return value->item.file;
  return std::get<TensorEntry>(entry).chunks.at(0).item.file;
}

TEST(RankMetadata, HasTheChunksOfAllRanksAndTheCopiesOfOne) {
  const std::map<int, Metadata> ranks = {{0, of_rank(0)}, {1, of_rank(1)}};
  for (const int preferred : {0, 1, 7}) {
    const Metadata merged = merge_rank_metadata(ranks, preferred, "dir");
    EXPECT_EQ(std::get<TensorEntry>(merged.entries.at("w")).chunks.size(), 2U);
    EXPECT_EQ(std::get<TensorEntry>(merged.entries.at("copy")).chunks.size(), 1U);
    const std::string own = preferred == 1 ? "__1_0.distcp" : "__0_0.distcp";
    EXPECT_EQ(file_of(merged, "copy"), own);
    EXPECT_EQ(file_of(merged, "step"), own);
  }
}

TEST(RankMetadata, OfDifferentTensorsUnderOneNameIsThatOfTheRankOrAnError) {
  std::map<int, Metadata> ranks = {{0, of_rank(0)}, {1, of_rank(1)}};
  std::get<TensorEntry>(ranks[1].entries["copy"]).shape = {3, 2};
  EXPECT_EQ(file_of(merge_rank_metadata(ranks, 1, "dir"), "copy"), "__1_0.distcp");
  expect_error<InvalidArgument>([&] { merge_rank_metadata(ranks, 7, "dir"); },
                                {"dir: copy is of another shape", "use_collectives=False"});
  ranks[1].entries["copy"] = ValueEntry{};
  expect_error<InvalidArgument>([&] { merge_rank_metadata(ranks, 7, "dir"); }, {"copy"});
}

TEST(RankMetadata, IsInFilesWithANumber) {
  const TempDir dir;
  for (const std::string name : {"__0.metadata", "__12.metadata", "__x.metadata", "__.metadata",
                                 "__-1.metadata", "__1.metadata.tmp", "__0_0.distcp"}) {
    std::ofstream(dir / name) << "x";
  }
  EXPECT_EQ(rank_metadata_files(dir.path()),
            (std::map<int, std::string>{{0, "__0.metadata"}, {12, "__12.metadata"}}));
}

}  // namespace rank_metadata_test
}  // namespace tessera::dcp
