#include <gtest/gtest.h>
#include <torch/version.h>

#include <cstdlib>
#include <fstream>

#include "tessera/rules/notation.h"
#include "tessera/rules/registry/registry.h"
#include "tests/rules_proof/coverage_page.h"

/// How much of ATen has a rule. TESSERA_WRITE_COVERAGE=1 writes docs/op_coverage.md anew.
namespace tessera::test {
namespace coverage_test {

constexpr const char* kPage = "docs/op_coverage.md";

/// Other versions of libtorch have other ops.
bool is_the_pages_torch() { return TORCH_VERSION_MAJOR == 2 && TORCH_VERSION_MINOR == 13; }

TEST(CoverageOfAten, IsMoreThanAThousandAndAHalf) {
  const Coverage coverage = coverage_of_aten();
  for (const auto& [kind, ops] : coverage.by_kind)
    std::printf("kind %d: %zu overloads\n", static_cast<int>(kind), ops.size());
  EXPECT_GE(coverage.by_kind.at(OpKind::ruled).size(), 1'500U);
}

TEST(CoverageOfAten, IsWhatThePageSays) {
  if (!is_the_pages_torch()) GTEST_SKIP() << "the page is of libtorch 2.13, this is another";
  const std::string page = coverage_page(coverage_of_aten());
  if (std::getenv("TESSERA_WRITE_COVERAGE") != nullptr) {
    std::ofstream(kPage) << page;
    return;
  }
  std::ostringstream written;
  written << std::ifstream(kPage).rdbuf();
  std::istringstream have(written.str()), want(page);
  std::string a, b;
  for (int line = 1; std::getline(want, b); ++line) {
    if (!std::getline(have, a)) a.clear();
    ASSERT_EQ(a, b) << kPage << ":" << line << " is not up to date; run make coverage";
  }
  EXPECT_EQ(written.str().size(), page.size()) << "run make coverage";
}

/// A rule whose name is misspelt would never be found.
TEST(CoverageOfAten, EveryRuleIsOfAnOpThatExists) {
  if (!is_the_pages_torch()) GTEST_SKIP() << "older ones lack some ops that have rules";
  for (const auto& op : rules::ruled_ops()) {
    const size_t dot = op.find('.');
    const auto found = c10::Dispatcher::singleton().findSchema(
        {op.substr(0, dot), dot == std::string::npos ? "" : op.substr(dot + 1)});
    EXPECT_TRUE(found.has_value()) << op;
  }
}

/// A line with too few terms would never apply.
TEST(CoverageOfAten, EveryLineHasATermForEachTensor) {
  if (!is_the_pages_torch()) GTEST_SKIP() << "schemas of other versions have other arguments";
  const auto is_tensor = [](const c10::TypePtr& type) {
    return type->str().find("Tensor") != std::string::npos;
  };
  for (const auto& op : rules::ruled_ops()) {
    const rules::Rule* rule = rules::find_rule(op);
    if (rule->text.starts_with("code")) continue;
    const size_t dot = op.find('.');
    const auto found = c10::Dispatcher::singleton().findSchema(
        {op.substr(0, dot), dot == std::string::npos ? "" : op.substr(dot + 1)});
    ASSERT_TRUE(found.has_value()) << op;
    const auto tensors = std::ranges::count_if(found->schema().arguments(), is_tensor,
                                               [](const auto& a) { return a.type(); });
    for (const auto& line : rules::parse_notation(rule->text)) {
      EXPECT_EQ(std::ssize(line.operands), tensors) << op << "  " << line.text;
      EXPECT_EQ(line.results.size(), found->schema().returns().size()) << op << "  " << line.text;
    }
  }
}

}  // namespace coverage_test
}  // namespace tessera::test
