#include "tessera/program/expression.h"

#include <gtest/gtest.h>

#include "tests/support_pure/expect_error.h"

namespace tessera::program {
namespace expression_test {

using test::expect_error;

constexpr const char* kSymbol = "Symbol('s77', positive=True, integer=True)";

std::optional<int64_t> value(const Expression& e, int64_t s77) {
  return e.evaluate([&](std::string_view name) -> std::optional<int64_t> {
    if (name == "s77") return s77;
    return std::nullopt;
  });
}

TEST(Expression, PrintsWhatItParsed) {
  for (const std::string& text :
       {std::string(kSymbol), std::string("Integer(-3)"),
        join_text("Add(Mul(Integer(2), ", kSymbol, "), Integer(1))"),
        join_text("FloorDiv(Add(", kSymbol, ", Integer(-1)), Integer(4))"),
        join_text("Pow(", kSymbol, ", Rational(1, 2), evaluate=False)"), std::string("true"),
        std::string("Float('1.5', precision=53)")}) {
    EXPECT_EQ(Expression::parse(text).to_srepr(), text);
  }
}

TEST(Expression, HasATextForPeople) {
  const auto e =
      Expression::parse(join_text("FloorDiv(Add(", kSymbol, ", Integer(1)), Integer(4))"));
  EXPECT_EQ(e.to_text(), "(s77 + 1)//4");
  EXPECT_EQ(
      Expression::parse(join_text("Add(Mul(Integer(2), ", kSymbol, "), Integer(1))")).to_text(),
      "2*s77 + 1");
  EXPECT_EQ(Expression::parse(join_text("Max(Integer(1), ", kSymbol, ")")).to_text(),
            "Max(1, s77)");
}

TEST(Expression, EvaluatesAsPythonDoes) {
  const auto of = [](const std::string& function, int64_t a, int64_t b) {
    return value(Expression::call(function, {Expression::integer(a), Expression::integer(b)}), 0);
  };
  EXPECT_EQ(of("FloorDiv", -7, 2), -4);
  EXPECT_EQ(of("PythonMod", -7, 2), 1);
  EXPECT_EQ(of("CeilDiv", 7, 2), 4);
  EXPECT_EQ(of("Pow", 3, 4), 81);
  EXPECT_EQ(of("CleanDiv", 8, 2), 4);
  EXPECT_EQ(of("CleanDiv", 7, 2), std::nullopt);
  EXPECT_EQ(of("FloorDiv", 7, 0), std::nullopt);
  EXPECT_EQ(of("Mul", int64_t{1} << 62, 4), std::nullopt);  // overflows
  EXPECT_EQ(value(Expression::symbol("s77"), 5), 5);
  EXPECT_EQ(value(Expression::symbol("s1"), 5), std::nullopt);
}

TEST(Expression, ShardsASize) {
  EXPECT_EQ(divide(Expression::integer(12), 4).to_srepr(), "Integer(3)");
  EXPECT_EQ(divide(Expression::symbol("s77"), 4).to_text(), "s77//4");
  EXPECT_EQ(divide(Expression::symbol("s77"), 1).to_text(), "s77");
}

TEST(Expression, RefusesBrokenText) {
  for (const std::string& text : {std::string(""), std::string("Symbol("), std::string("Symbol('s"),
                                  std::string("Add(Integer(1)"), std::string("Integer(x)"),
                                  std::string("Integer(99999999999999999999)"),
                                  std::string("Integer(1))"), std::string(5000, '(')}) {
    expect_error<InvalidArgument>([&] { Expression::parse(text); }, {"expected"});
  }
  std::string deep;
  for (int i = 0; i < 5000; ++i) deep += "F(";
  expect_error<InvalidArgument>([&] { Expression::parse(deep); }, {"nested"});
}

}  // namespace expression_test
}  // namespace tessera::program
