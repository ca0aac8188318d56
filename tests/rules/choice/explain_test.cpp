#include "tessera/rules/choice/explain.h"

#include <gtest/gtest.h>

#include "tessera/rules/registry/registry.h"
#include "tests/rules/golden.h"

namespace tessera::test {
namespace explain_test {

using rules::Explanation;
using Verdict = Explanation::Verdict;

Explanation explained(const char* mesh, const char* line, int candidates = 32) {
  const TextCall call(mesh, line);
  return rules::explain(*rules::find_rule(call.op()), call.get(), {candidates});
}

std::string refusals(const Explanation& e) {
  std::string out;
  for (const auto& r : e.refused) out += r.axis + " " + r.operands + ": " + r.why + "; ";
  return out;
}

TEST(Explanation, ListsTheChosenCandidateFirstThenByCost) {
  const auto e = explained("dp=2,tp=4", "aten::mm 8x16@S0,R 16x32@R,S1");
  ASSERT_GT(e.candidates.size(), 5U);
  EXPECT_EQ(e.candidates[0].verdict, Verdict::chosen);
  EXPECT_EQ(e.candidates[0].operands, (std::vector<std::string>{"S0,R", "R,S1"}));
  EXPECT_EQ(e.candidates[0].results, (std::vector<std::string>{"S0,S1"}));
  EXPECT_EQ(e.candidates[0].seconds, 0);
  EXPECT_EQ(e.candidates[0].work, 1);
  // 4x16 of the first, 16x8 of the second, 4x8 of the result.
  EXPECT_EQ(e.candidates[0].held, (64 + 128 + 32) * 4);
  for (size_t i = 1; i < e.candidates.size() && e.candidates[i].verdict != Verdict::dropped; ++i) {
    EXPECT_EQ(e.candidates[i].verdict, Verdict::costlier);
    EXPECT_GE(e.candidates[i].seconds, e.candidates[i - 1].seconds * (i > 1 ? 1 : 0));
    EXPECT_FALSE(e.candidates[i].why.empty());
  }
}

TEST(Explanation, ShowsWhatMovesForTheChosenOne) {
  const auto e = explained("tp=4", "aten::_softmax 1024x4096@S1 dim=1");
  EXPECT_EQ(e.candidates[0].verdict, Verdict::chosen);
  ASSERT_EQ(e.candidates[0].moves.size(), 1U);
  EXPECT_EQ(e.candidates[0].moves[0].find("0: all_to_all over tp"), 0U) << e.candidates[0].moves[0];
  EXPECT_NE(e.to_text().find("all_to_all over tp"), std::string::npos);
  EXPECT_GT(e.candidates[0].seconds, 0);
  EXPECT_GT(e.candidates[0].bytes, 0);
}

TEST(Explanation, SaysWhyAShardIsNotOffered) {
  EXPECT_EQ(refusals(explained("tp=4", "aten::_softmax 8x16@S0 dim=1")), "tp S1: must be whole; ");
  EXPECT_EQ(refusals(explained("tp=4", "aten::amax 8x3@S0 dim={1}")),
            "tp P(max): nothing is partial here; tp S1: 3 for 4 ranks: some would hold nothing, "
            "which the kernel does not take; ");
  EXPECT_EQ(refusals(explained("tp=4",
                               "aten::native_group_norm 8x8x3@S0 8 8 N=8 C=8 HxW=3 "
                               "group=2")),
            "tp S1 | S0 | S0: 2 for 4 ranks: only equal parts are possible; "
            "tp S2 | R | R: must be whole; ");
  EXPECT_EQ(refusals(explained("tp=4", "aten::mm 8x16 16x8")),
            "tp any: a replicated operand stays replicated: no operand is sharded; ");
}

TEST(Explanation, SaysWhyRowsAreNotLegalTogether) {
  const auto e = explained("a=2,b=2",
                           "aten::_scaled_dot_product_flash_attention_for_cpu "
                           "4x6x8x2@S1,S1 4x6x8x2@S1,S1 4x6x8x2@S1,S1 -");
  const auto dropped =
      std::ranges::find(e.candidates, Verdict::dropped, &Explanation::Candidate::verdict);
  ASSERT_NE(dropped, e.candidates.end());
  EXPECT_EQ(dropped->why, "6 elements for 4 ranks: some could be empty");
}

TEST(Explanation, ListsTheWaysOfAView) {
  const auto e = explained("tp=4", "aten::view 2x12@S1 size={2,3,4}");
  ASSERT_EQ(e.candidates.size(), 1U);
  EXPECT_EQ(e.candidates[0].operands, (std::vector<std::string>{"R"}));
  EXPECT_EQ(e.candidates[0].verdict, Verdict::chosen);
}

/// One row an axis, each with a kernel.
rules::Rule with_kernels(std::string_view of_first, std::string_view of_second) {
  rules::Rule rule;
  rule.op = "aten::t";
  rule.text = "of a test";
  rule.rows = [=](const rules::OpCall&, int axis) {
    rules::Row row;
    row.operands = row.results = {Shard(axis)};
    row.letter = axis;
    row.size = 16;
    row.kernel = axis == 0 ? of_first : of_second;
    row.comm = axis == 0 ? rules::KernelComm::combine : rules::KernelComm::exchange;
    row.sent = 1'000;
    return std::vector{row};
  };
  return rule;
}

TEST(Explanation, CombinesAKernelOfTwoAxesAndRefusesTwoKernels) {
  const TextCall call("a=2,b=2", "aten::t 16x16@S0,S1");
  const auto one = rules::explain(with_kernels("scan", "scan"), call.get());
  EXPECT_EQ(one.candidates[0].verdict, Verdict::chosen);
  EXPECT_EQ(one.candidates[0].operands, std::vector<std::string>{"S0,S1"});
  EXPECT_EQ(one.candidates[0].kernel, "scan");
  EXPECT_EQ(one.candidates[0].comm, rules::KernelComm::combine);
  EXPECT_EQ(one.candidates[0].bytes, 2'000);
  EXPECT_GT(one.candidates[0].seconds, 0) << "what is combined counts, what is exchanged does not";
  EXPECT_NE(one.to_text().find("by the kernel 'scan', which combines results"), std::string::npos);

  const auto two = rules::explain(with_kernels("scan", "sort"), call.get());
  const auto dropped =
      std::ranges::find(two.candidates, Verdict::dropped, &Explanation::Candidate::verdict);
  ASSERT_NE(dropped, two.candidates.end());
  EXPECT_EQ(dropped->operands, std::vector<std::string>{"S0,S1"});
  EXPECT_EQ(dropped->why, "two kernels for one call, scan and sort");
  EXPECT_NE(two.candidates[0].operands, std::vector<std::string>{"S0,S1"});
}

TEST(Explanation, SaysThatThereIsMoreThanItShows) {
  const auto e = explained("a=2,b=2,c=2", "aten::mm 8x16@S0,S1,R 16x32@R,S1,S0", 4);
  EXPECT_FALSE(e.complete);
  EXPECT_LE(std::ranges::count_if(e.candidates,
                                  [](const auto& c) { return c.verdict != Verdict::dropped; }),
            4);
  EXPECT_EQ(e.candidates[0].verdict, Verdict::chosen);
}

}  // namespace explain_test
}  // namespace tessera::test
