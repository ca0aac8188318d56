#include "tessera/base/path_pattern.h"

#include <gtest/gtest.h>

namespace tessera {
namespace path_pattern_test {

TEST(PathPattern, AStarStandsForCharactersOfOneComponent) {
  EXPECT_TRUE(matches_path("layers.*.up", "layers.12.up"));
  EXPECT_TRUE(matches_path("*_norm", "mlp_norm"));
  EXPECT_TRUE(matches_path("*", ""));
  EXPECT_FALSE(matches_path("layers.*", "layers.0.wq"));
  EXPECT_FALSE(matches_path("layers.*.up", "layers.12.mlp.up"));
}

TEST(PathPattern, TwoStarsStandForDotsToo) {
  EXPECT_TRUE(matches_path("**.up", "layers.12.mlp.up"));
  EXPECT_TRUE(matches_path("layers.**", "layers.12.mlp.up"));
  EXPECT_FALSE(matches_path("**.up", "up"));
}

TEST(PathPattern, AQuestionMarkStandsForOneCharacter) {
  EXPECT_TRUE(matches_path("layers.?.up", "layers.1.up"));
  EXPECT_TRUE(matches_path("layers.*.w?", "layers.12.wk"));
  EXPECT_FALSE(matches_path("layers.?.up", "layers.12.up"));
  EXPECT_FALSE(matches_path("w?", "w"));
}

TEST(PathPattern, BracketsStandForOneOfTheirCharacters) {
  EXPECT_TRUE(matches_path("layers.*.w[qkv]", "layers.12.wk"));
  EXPECT_FALSE(matches_path("w[qkv]", "wo"));
  EXPECT_FALSE(matches_path("w[qkv]", "w"));
  EXPECT_TRUE(matches_path("layers.[0-3].up", "layers.2.up"));
  EXPECT_FALSE(matches_path("layers.[0-3].up", "layers.4.up"));
  EXPECT_TRUE(matches_path("layers.[!0].up", "layers.2.up"));
  EXPECT_FALSE(matches_path("layers.[!0].up", "layers.0.up"));
  EXPECT_TRUE(matches_path("[a-]", "-"));
  EXPECT_TRUE(matches_path("[]x]", "]"));
  EXPECT_TRUE(matches_path("w[q", "w[q"));
}

TEST(PathPattern, TextStandsForItself) {
  EXPECT_TRUE(matches_path("", ""));
  EXPECT_TRUE(matches_path("layers.0", "layers.0"));
  EXPECT_FALSE(matches_path("layers", "layers.0"));
  EXPECT_FALSE(matches_path("layers.0", "layers"));
}

TEST(PathPattern, NearestAreThoseWithTheFewestEdits) {
  const std::vector<std::string> paths = {"mlp.up", "mlp.down", "attention.wq"};
  EXPECT_EQ(nearest_paths("mlp.upp", paths, 1), std::vector<std::string>{"mlp.up"});
}

}  // namespace path_pattern_test
}  // namespace tessera
