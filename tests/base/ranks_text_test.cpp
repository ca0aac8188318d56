#include "tessera/base/ranks_text.h"

#include <gtest/gtest.h>

#include <vector>

namespace tessera {
namespace ranks_text_test {

TEST(RanksText, WritesRunsAsRanges) {
  const auto text = [](std::vector<int> ranks) { return ranks_text(ranks); };
  EXPECT_EQ(text({}), "");
  EXPECT_EQ(text({3}), "3");
  EXPECT_EQ(text({0, 1}), "0,1");
  EXPECT_EQ(text({0, 1, 2, 3}), "0-3");
  EXPECT_EQ(text({0, 4, 8, 12}), "0-12:4");
  EXPECT_EQ(text({3, 2, 1, 0}), "3,2,1,0");
  EXPECT_EQ(text({0, 1, 2, 7, 9, 11, 20}), "0-2,7-11:2,20");
  EXPECT_EQ(text({5, 0, 1}), "5,0,1");
}

TEST(RanksText, WritesOnlyConsecutiveRanksAsRangesWhereStridesCannotBeRead) {
  const auto text = [](std::vector<int> ranks) { return ranks_text(ranks, RankRuns::consecutive); };
  EXPECT_EQ(text({}), "");
  EXPECT_EQ(text({0, 1, 2, 3}), "0-3");
  EXPECT_EQ(text({0, 4, 8, 12}), "0,4,8,12");
  EXPECT_EQ(text({0, 1, 2, 7, 9, 11, 12, 13}), "0-2,7,9,11-13");
}

}  // namespace ranks_text_test
}  // namespace tessera
