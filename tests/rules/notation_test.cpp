#include "tessera/rules/notation.h"

#include <gtest/gtest.h>

#include "tessera/rules/registry/registry.h"
#include "tessera/rules/rule.h"
#include "tests/rules/golden.h"
#include "tests/support_pure/expect_error.h"

namespace tessera::test {
namespace notation_test {

using rules::parse_notation;

TEST(Notation, ReadsTermsAndClauses) {
  const auto lines = parse_notation(
      "+mn, mk, k(gC)?, [*X..] -> *n!k, _ ; linear 1+2 ; whole $dim if keep=1 | . -> .");
  ASSERT_EQ(lines.size(), 2U);
  const auto& line = lines[0];
  ASSERT_EQ(line.operands.size(), 4U);
  EXPECT_TRUE(line.operands[0].addend);
  EXPECT_EQ(line.operands[1].dims.size(), 2U);
  EXPECT_TRUE(line.operands[2].optional);
  EXPECT_EQ(line.operands[2].dims[1].kind, rules::Dim::Kind::product);
  EXPECT_TRUE(line.operands[3].list);
  EXPECT_TRUE(line.operands[3].dims[1].whole);
  EXPECT_EQ(line.results[0].free_of, "k");
  EXPECT_TRUE(line.results[1].anything);
  EXPECT_EQ(line.clauses[0].operands, (std::vector<int>{1, 2}));
  EXPECT_EQ(line.clauses[1].attribute, "dim");
  EXPECT_EQ(line.clauses[1].condition.value, "1");
  EXPECT_TRUE(lines[1].operands[0].dims.empty());
}

TEST(Notation, MistakesAreShownWithTheirPlace) {
  const auto fails = [](const char* text, std::initializer_list<std::string_view> parts) {
    expect_error<InvalidArgument>([&] { parse_notation(text); }, parts);
  };
  fails("mk, kn", {"mk, kn", "'->'"});
  fails("mk, kn -> mn ; linaer 0", {"a clause (linear", "linaer 0"});
  fails("mk, kn -> mz", {"'z' is in no operand", "upper case"});
  fails("mk, kn -> mn ; linear 2", {"operand 2 of 2"});
  fails("mk, kn -> mn ; linear 99999999999", {"a number"});
  fails("mk, kn -> mn ; whole q", {"'q'", "no operand has"});
  fails("m(gc -> m", {"upper-case"});
  fails("m, -> m", {"dims, '.', '_' or '&'"});
  fails("* -> * ; pass mean 0", {"mean", "sum, avg"});
  fails("* -> * ; reduce $dim", {"no reduction"});
  fails("* -> * extra", {"';', '|' or the end"});
}

TEST(Notation, EveryLineOfTheTablesParses) {
  const auto ops = rules::ruled_ops();
  EXPECT_GT(ops.size(), 600U);
  for (const auto& op : ops) EXPECT_NO_THROW(EXPECT_NE(rules::find_rule(op), nullptr)) << op;
}

/// docs/rule_notation.md shows this.
TEST(Notation, AUsersRuleIsALine) {
  rules::register_rule("mylib::scale_rows", "mn, m -> mn ; linear 0 ; linear 1");
  const TextCall call("tp=4", "mylib::scale_rows 8x6 8");
  std::vector<std::string> rows;
  for (const auto& row : rules::find_rule("mylib::scale_rows")->rows(call.get(), 0))
    rows.push_back(text_of(row));
  EXPECT_EQ(rows, (std::vector<std::string>{"S0,S0 -> S0", "S1,R -> S1", "P(sum),R -> P(sum)",
                                            "P(avg),R -> P(avg)", "R,P(sum) -> P(sum)",
                                            "R,P(avg) -> P(avg)"}));
}

/// A number is never equal to a word, which may be a mistake in a user's rule.
TEST(Notation, AConditionOnANumberComparesNumbers) {
  rules::register_rule("mylib::power", "m -> m ; linear 0 if p=1 ; order 0 if p=one");
  const auto rows = [](const char* line) {
    const TextCall call("tp=4", line);
    std::vector<std::string> out;
    for (const auto& row : rules::find_rule("mylib::power")->rows(call.get(), 0))
      out.push_back(text_of(row));
    return out;
  };
  EXPECT_EQ(rows("mylib::power 8 p=1.0"),
            (std::vector<std::string>{"S0 -> S0", "P(sum) -> P(sum)", "P(avg) -> P(avg)"}));
  EXPECT_EQ(rows("mylib::power 8 p=2.0"), std::vector<std::string>{"S0 -> S0"});
}

TEST(DerivedRules, FollowFromTheOp) {
  const auto text = [](const char* op) {
    const auto* rule = rules::find_rule(op);
    return rule == nullptr ? std::string("none") : rule->text;
  };
  EXPECT_NE(text("aten::add_.Tensor").find("in place"), std::string::npos);
  EXPECT_TRUE(rules::find_rule("aten::add_.Tensor")->in_place);
  EXPECT_EQ(rules::find_rule("aten::mm.out")->out_count, 1);
  EXPECT_EQ(rules::find_rule("aten::native_layer_norm.out")->out_count, 3);
  EXPECT_NE(text("aten::sum.IntList_out").find("reduce $dim sum"), std::string::npos);
  EXPECT_NE(text("aten::permute_copy").find("copy"), std::string::npos);
  EXPECT_EQ(rules::find_rule("aten::split_copy.Tensor")->instead, "aten::split_with_sizes_copy");
  EXPECT_NE(text("aten::_foreach_addcdiv_.ScalarList").find("each element"), std::string::npos);
  EXPECT_EQ(text("aten::no_such_op"), "none");
  EXPECT_EQ(text("aten::no_such_op_"), "none");
}

}  // namespace notation_test
}  // namespace tessera::test
