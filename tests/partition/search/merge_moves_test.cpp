#include "tessera/partition/search/merge_moves.h"

#include <gtest/gtest.h>

#include "tests/partition/programs.h"

namespace tessera::partition {
namespace merge_moves_test {

using plan::Move;

const program::ValueId kValue{0};

/// Merged moves as text: "P(sum) -> R at 3; R -> S0 at 5".
std::string merged(const std::string& produced,
                   const std::vector<std::pair<std::string, size_t>>& needed,
                   const std::string& also = "", const std::string& mesh = "tp=4") {
  const auto sharding = [&](const std::string& placements) {
    return Sharding::parse(mesh + " : " + placements + " : 64x64");
  };
  MoveCosts costs(cost::default_machine("cpu"));
  std::vector<NeededForm> forms;
  for (const auto& [placements, reader] : needed) forms.push_back({sharding(placements), reader});
  std::string out;
  for (const auto& move : merge_moves(kValue, sharding(produced), forms,
                                      also.empty() ? Sharding() : sharding(also), costs)) {
    out += join_text(out.empty() ? "" : "; ", move.from.placements_text(), " -> ",
                     move.to.placements_text(), " at ", move.first_reader);
  }
  return out;
}

TEST(MergeMoves, AReduceAndAGatherAreOneAllReduce) {
  EXPECT_EQ(merged("P(sum)", {{"R", 3}}, "S0"), "P(sum) -> R at 3");
}

TEST(MergeMoves, WhereAShardSufficesNothingIsGathered) {
  EXPECT_EQ(merged("P(sum)", {{"S0", 3}}, "R"), "P(sum) -> S0 at 3");
}

TEST(MergeMoves, AShardOfWhatIsWholeIsASlice) {
  // Whichever is read first.
  EXPECT_EQ(merged("P(sum)", {{"R", 3}, {"S0", 5}}), "P(sum) -> R at 3; R -> S0 at 5");
  EXPECT_EQ(merged("P(sum)", {{"S0", 3}, {"R", 5}}), "P(sum) -> R at 3; R -> S0 at 3");
  EXPECT_EQ(merged("S0", {{"S1", 3}, {"R", 5}}), "S0 -> R at 3; R -> S1 at 3");
}

TEST(MergeMoves, NothingIsMadeThatNoReaderNeeds) {
  EXPECT_EQ(merged("R", {}, "S0"), "");
  EXPECT_EQ(merged("S0", {{"S1", 3}}, "R"), "S0 -> S1 at 3");  // an all_to_all, no gather
}

TEST(MergeMoves, OnTwoAxesTheSumIsReducedOnce) {
  EXPECT_EQ(merged("P(sum),P(sum)", {{"R,S0", 4}, {"R,R", 6}}, "", "dp=2,tp=2"),
            "P(sum),P(sum) -> R,R at 4; R,R -> R,S0 at 4");
}

}  // namespace merge_moves_test
}  // namespace tessera::partition
