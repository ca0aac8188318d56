#include "tessera/rules/choice/choose.h"

#include <gtest/gtest.h>

#include <chrono>

#include "tessera/plan/plan.h"
#include "tessera/rules/registry/registry.h"
#include "tests/rules/golden.h"

namespace tessera::test {
namespace choose_test {

/// "S0,R | R,S1 -> S0,S1"
std::string chosen(const char* mesh, const char* line) {
  const TextCall call(mesh, line);
  const auto choice = rules::choose(*rules::find_rule(call.op()), call.get());
  std::string out;
  for (const auto& s : choice.operands) {
    out += (out.empty() ? "" : " | ") + (s.defined() ? s.placements_text() : std::string("-"));
  }
  out += " ->";
  for (const auto& r : choice.results) out += " " + placements_text(r);
  return out;
}

double seconds(const char* mesh, const char* line) {
  const TextCall call(mesh, line);
  return rules::choose(*rules::find_rule(call.op()), call.get()).seconds;
}

TEST(Choice, TakesWhatFitsAsItIs) {
  EXPECT_EQ(chosen("tp=4", "aten::mm 8x16@S0 16x32@R"), "S0 | R -> S0");
  EXPECT_EQ(chosen("tp=4", "aten::mm 8x16@R 16x32@S1"), "R | S1 -> S1");
  EXPECT_EQ(chosen("tp=4", "aten::mm 8x16@S1 16x32@S0"), "S1 | S0 -> P(sum)");
  EXPECT_EQ(chosen("dp=2,tp=4", "aten::mm 8x16@S0,R 16x32@R,S1"), "S0,R | R,S1 -> S0,S1");
  EXPECT_EQ(chosen("dp=2,tp=4", "aten::bmm 4x8x16@S0,S1 4x16x32@S0,R"), "S0,S1 | S0,R -> S0,S1");
  EXPECT_EQ(seconds("dp=2,tp=4", "aten::bmm 4x8x16@S0,S1 4x16x32@S0,R"), 0);
}

TEST(Choice, LeavesReplicatedAlone) {
  EXPECT_EQ(chosen("tp=4", "aten::mm 8x16 16x32"), "R | R -> R");
  EXPECT_EQ(chosen("dp=2,tp=4", "aten::mm 8x16@S0,R 16x32"), "S0,R | R,R -> S0,R");
}

TEST(Choice, MovesTheSmallerOperand) {
  EXPECT_EQ(chosen("tp=4", "aten::mm 4096x16@S0 16x8@S0"), "S0 | R -> S0");
  EXPECT_EQ(chosen("tp=4", "aten::add.Tensor 4096x16@S0 16@S0"), "S0 | R -> S0");
}

TEST(Choice, ScattersASumRatherThanReplicateIt) {
  EXPECT_EQ(chosen("tp=4", "aten::relu 64x64@P(sum)"), "S0 -> S0");
  EXPECT_EQ(chosen("tp=4", "aten::relu 3x64@P(sum)"), "S1 -> S1");  // equal shares of work
}

TEST(Choice, KeepsPartialWhereItMay) {
  EXPECT_EQ(chosen("tp=4", "aten::add.Tensor 8x8@P(sum) 8x8@P(sum)"), "P(sum) | P(sum) -> P(sum)");
  EXPECT_EQ(chosen("tp=4", "aten::mul.Tensor 8x8@P(sum) 8x8@R"), "P(sum) | R -> P(sum)");
  EXPECT_EQ(chosen("tp=4", "aten::linear 2x8x16@S2 32x16@S1 32@R"), "S2 | S1 | P(sum) -> P(sum)");
}

TEST(Choice, NeverMixesReductionsInOneTensor) {
  // max of one axis, sum of the other: the sum is taken first.
  const std::string got = chosen("a=2,b=2", "aten::add.Tensor 8x8@P(max),R 8x8@R,P(sum)");
  EXPECT_EQ(got.find("P(max),P(sum)"), std::string::npos) << got;
}

TEST(Choice, WhatIsWrittenStays) {
  EXPECT_EQ(chosen("tp=4", "aten::add_.Tensor 8x8@R 8x8@S0"), "R | R -> R");
  EXPECT_EQ(chosen("tp=4", "aten::add_.Tensor 8x8@S0 8x8@P(sum)"), "S0 | S0 -> S0");
  EXPECT_EQ(chosen("tp=4", "aten::copy_ 4096x8@S1 4096x8@S0"), "S1 | S1 -> S1");
}

TEST(Choice, OutOperandsFollowTheResult) {
  EXPECT_EQ(chosen("tp=4", "aten::mm.out 8x16@S0 16x32@R 8x32@S0"), "S0 | R | S0 -> S0");
}

TEST(Choice, HonoursTheOrderOfItsOperands) {
  EXPECT_EQ(chosen("a=2,b=2", "aten::relu 8x8@S0#1,S0#0"), "S0#1,S0#0 -> S0,S0");
  const TextCall call("a=2,b=2", "aten::add.Tensor 8x8@S0#1,S0#0 8x8@S0#1,S0#0");
  const auto choice = rules::choose(*rules::find_rule("aten::add.Tensor"), call.get());
  EXPECT_EQ(choice.order, (std::vector<int>{1, 0}));
  EXPECT_EQ(choice.seconds, 0);
}

TEST(Choice, ViewsKeepUnevenShardsExactly) {
  EXPECT_EQ(chosen("tp=2", "aten::view 5x6@S0 size={30}"), "S0 -> S0[18,12]");
  EXPECT_EQ(chosen("tp=2", "aten::view 30@S0[18,12] size={5,6}"), "S0[18,12] -> S0");
  EXPECT_EQ(chosen("tp=2", "aten::view 8x6@S1 size={48}"), "S1 -> SS0(8)");
  EXPECT_EQ(chosen("tp=2", "aten::view 48@SS0(8) size={8,6}"), "SS0(8) -> S1");
  EXPECT_EQ(chosen("tp=2", "aten::view 4x2x6@S0 size={8,6}"), "S0 -> S0");
  EXPECT_EQ(chosen("tp=4", "aten::view 2x12@S1 size={2,3,4}"),
            "R -> R");  // 3 rows of 4 for 4 ranks
  EXPECT_EQ(chosen("tp=2", "aten::slice.Tensor 8x6@S0 dim=0 start=3 end=6"), "S0 -> S0[1,2]");
  EXPECT_EQ(chosen("a=2,b=2", "aten::view 16@S0,S0 size={4,4}"), "S0,S0 -> S0,S0");
  EXPECT_EQ(chosen("a=4,b=2", "aten::view 16@S0,S0 size={4,4}"), "S0,S0 -> S0,S1");
}

TEST(Choice, NewTensorsAreMadeBesideTheOther) {
  EXPECT_EQ(chosen("tp=4", "aten::new_zeros 8x6@S0 size={8,6}"), "S0 -> S0");
  EXPECT_EQ(chosen("tp=4", "aten::new_zeros 8x6@S0 size={8,2}"), "S0 -> S0");
  EXPECT_EQ(chosen("tp=4", "aten::new_zeros 8x6@S0 size={4,6}"), "S0 -> R");
  EXPECT_EQ(chosen("tp=4", "aten::new_zeros 8x6@P(sum) size={8,6}"), "P(sum) -> R");
  EXPECT_EQ(chosen("tp=4", "aten::new_empty_strided 8x6@P(sum) size={8,6} stride={1,8}"),
            "P(sum) -> P(sum)");
}

TEST(Choice, ElementsOfAListChooseForThemselves) {
  EXPECT_EQ(chosen("tp=4", "aten::_foreach_mul.Scalar [8@S0;8@R;8x8@S1] scalar=2"),
            "S0 | R | S1 -> S0 R S1");
}

TEST(Choice, PlacesAThousandTensors) {
  for (const char* mesh : {"tp=4", "dp=2,tp=2"}) {
    const std::string placed = std::string(mesh) == "tp=4" ? "16x8@S0" : "16x8@S0,S1";
    std::string list;
    for (int i = 0; i < 1'000; ++i) list += (i > 0 ? ";" : "") + placed;
    for (const std::string op : {"aten::stack", "aten::cat", "aten::_foreach_mul.Scalar"}) {
      const TextCall call(mesh, op + " [" + list + "] dim=0");
      const auto choice = rules::choose(*rules::find_rule(op), call.get());
      EXPECT_EQ(choice.operands.size(), 1'000U);
    }
  }
}

}  // namespace choose_test
}  // namespace tessera::test
