#include <gtest/gtest.h>

#include "tessera/sharding/sharding.h"
#include "tests/support_pure/expect_error.h"
#include "tests/support_pure/random_shardings.h"

namespace tessera {
namespace sharding_text_test {

using test::expect_error;
using test::for_each_seed;
using test::Rng;

TEST(ShardingText, HasOneFormForEveryWayToWriteASharding) {
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"dp=2,tp=4 : S0,R : 8x16", "dp=2,tp=4 : S0,R : 8x16"},
      {"dp=2,tp=4:S0,R:8x16", "dp=2,tp=4 : S0,R : 8x16"},
      {" dp = 2 , tp = 4 : S 0 , R : 8 x 16 ", "dp=2,tp=4 : S0,R : 8x16"},
      {"dp=2,tp=2 : S0,S0 : 8x16", "dp=2,tp=2 : S0,S0 : 8x16"},
      {"dp=2,tp=2 : S0#1,S0#0 : 8x16", "dp=2,tp=2 : S0#1,S0#0 : 8x16"},
      {"dp=2,tp=2 : S0#0,S0#1 : 8x16", "dp=2,tp=2 : S0,S0 : 8x16"},
      {"dp=2,tp=2 : S0#1,S0 : 8x16", "dp=2,tp=2 : S0#1,S0#0 : 8x16"},
      {"dp=2,tp=2 : S0#0,S1#0 : 8x16", "dp=2,tp=2 : S0,S1 : 8x16"},
      {"a=2,b=2,c=2 : S0#1,S1,S0#0 : 8x8", "a=2,b=2,c=2 : S0#1,S1,S0#0 : 8x8"},
      {"a=2,b=2,c=2,d=2 : S0#1,S1#1,S0#0,S1#0 : 8x8",
       "a=2,b=2,c=2,d=2 : S0#1,S1#1,S0#0,S1#0 : 8x8"},
      {"tp=4 : P(max) : 8x16 bf16", "tp=4 : P(max) : 8x16 bf16"},
      {"tp=4 : S1 : 8x16 {1,8}", "tp=4 : S1 : 8x16 {1,8}"},
      {"tp=4 : S1 : 8x16 { 16 , 1 }", "tp=4 : S1 : 8x16"},
      {"tp=4 : S1 : 8x16 i64 {1,8}", "tp=4 : S1 : 8x16 i64 {1,8}"},
      {"tp=4 : S-1 : 8x16 f32", "tp=4 : S1 : 8x16"},
      {"tp=4 : S0#0 : 8", "tp=4 : S0 : 8"},
      {"tp=4 : R : scalar", "tp=4 : R : scalar"},
      {"tp=4 : P : scalar f64", "tp=4 : P(sum) : scalar f64"},
      {"tp=4 : S0 : 0", "tp=4 : S0 : 0"},
      {"tp=4 : S0 : 0x0x3", "tp=4 : S0 : 0x0x3"},
      {"cuda:dp=2 : S0[3,5] : 8 bool", "cuda:dp=2 : S0[3,5] : 8 bool"},
      {"cuda : dp = 2 : SS0(2) : 8 f8_e4m3fn", "cuda:dp=2 : SS0(2) : 8 f8_e4m3fn"},
      {"dp=2,tp=2@4-7 : R,S0 : 8", "dp=2,tp=2@4-7 : R,S0 : 8"},
      {"a=2,b=2 : S0[1,3,3,1]#1,S0#0 : 8", "a=2,b=2 : S0[1,3,3,1]#1,S0#0 : 8"},
  };
  for (const auto& [text, canonical] : cases) {
    EXPECT_EQ(Sharding::parse(text).to_text(), canonical) << text;
  }
}

TEST(ShardingText, OfThePlacementsShowsTheOrderWhereItIsNotTheUsualOne) {
  EXPECT_EQ(Sharding::parse("dp=2,tp=2 : S0#1,S0#0 : 8x16").placements_text(), "S0#1,S0#0");
  EXPECT_EQ(Sharding::parse("dp=2,tp=2 : S0#0,S0#1 : 8x16").placements_text(), "S0,S0");
}

TEST(ShardingText, ReadsWhatItWrites) {
  int cases = 0, orders = 0;
  for_each_seed(3000, [&](Rng& rng) {
    ++cases;
    const auto mesh = rng.chance(50) ? test::random_mesh(rng)
                                     : test::with_random_ranks(rng, test::random_mesh(rng));
    const Sharding s =
        test::random_sharding(rng, mesh, test::random_shape(rng), {.stride = true, .dtype = true});
    const Sharding read = Sharding::parse(s.to_text());
    EXPECT_EQ(read, s) << s.to_text() << "\n" << read.to_text();
    if (!s.has_default_order()) ++orders;
  });
  EXPECT_GT(orders, cases / 30);
}

TEST(ShardingText, SaysWhatIsWrongWithAText) {
  struct Case {
    std::string text;
    std::string says;
  };
  const std::string form = "a sharding is \"mesh : placements : shape\"";
  const std::vector<Case> cases = {
      {"", form},
      {"dp=2", form},
      {"dp=2 : S0", "cannot read \"dp=2 : S0\": a sharding is"},
      {"dp=2 : S0 : 8 : 9", form},
      {"S0 : 8 : 9", form},
      {"dp=2,=3 : S0 : 8", "expected the name of a mesh axis at position 5, found '='"},
      {"dp=0 : S0 : 8", "mesh axis dp has size 0"},
      {"dp=2 :  : 8", "expected a placement"},
      {"dp=2 : S0, : 8", "expected a placement"},
      {"dp=2 : Q : 8", "expected a placement: R, S0, S0[3,3,1], SS0(2) or P(sum)"},
      {"dp=2 : S0 S0 : 8", "expected the end at position 4, found 'S'"},
      {"dp=2 : S0,R : 8", "mesh dp=2 has 1 axes but 2 placements were given: S0,R"},
      {"dp=2,tp=2 : S0 : 8", "mesh dp=2,tp=2 has 2 axes but 1 placements were given: S0"},
      {"dp=2 : S1 : 8", "S1 needs dim 1 of a tensor with 1 dims, in dp=2 : S1 : 8"},
      {"dp=2 : S0 : ", "expected a size, or \"scalar\""},
      {"dp=2 : S0 : x", "expected a size, or \"scalar\" at position 1, found 'x'"},
      {"dp=2 : S0 : 8x", "expected a size, or \"scalar\" at position 3, found the end"},
      {"dp=2 : R : scalarx", "expected a size, or \"scalar\" at position 1, found 's'"},
      {"dp=2 : S0 : 8x-1", "8x-1: a size is negative"},
      {"dp=2 : S0 : 99999999999x99999999999", "more bytes than fit 64 bits"},
      {"dp=2 : S0 : 8 float", "no element type is called \"float\", in \"dp=2 : S0 : 8 float\""},
      {"dp=2 : S0 : 8 f32 f32", "expected the end at position 7, found 'f'"},
      {"dp=2 : S0 : 8,8", "expected an element type like f32 or bf16 at position 2, found ','"},
      {"dp=2 : S0 : 8 {", "expected a stride at position 4, found the end"},
      {"dp=2 : S0 : 8 {}", "expected a stride at position 4, found '}'"},
      {"dp=2 : S0 : 8x8 {1,}", "expected a stride at position 8, found '}'"},
      {"dp=2 : S0 : 8x8 {1 8}", "expected '}' at position 8, found '8'"},
      {"dp=2 : S0 : 8x8 {1,8", "expected '}' at position 9, found the end"},
      {"dp=2 : S0 : 8x8 {8}", "strides {8} for a tensor of shape 8x8"},
      {"dp=2 : S0 : 8x8 {8,-1}", "none negative"},
      {"dp=2 : S0# : 8", "expected a place in the order"},
      {"dp=2 : R#0 : 8", "R#0: only shards have a place in the order"},
      {"dp=2 : S0#1 : 8", "S0#1: the 1 axes that shard dim 0 are numbered from #0, each once"},
      {"a=2,b=2 : S0#1,S0#1 : 8", "S0#1: the 2 axes that shard dim 0 are numbered from #0"},
      {"a=2,b=2 : S0,S0#0 : 8", "S0#0: the 2 axes that shard dim 0"},
      {"a=2,b=2 : S0#-1,S0#0 : 8", "S0#-1: the 2 axes"},
      {"dp=2 : S0[1,2] : 8", "the sizes 1,2 sum to 3, dim 0 has 8 to share"},
      {"a=2,b=2 : P(sum),P(min) : 8", "P(sum) on one axis and P(min) on another"},
  };
  for (const auto& [text, says] : cases) {
    SCOPED_TRACE(text);
    expect_error<InvalidArgument>([&] { Sharding::parse(text); }, {says});
  }
}

}  // namespace sharding_text_test
}  // namespace tessera
