#include "tests/rules_proof/prove_all.h"
#include "tests/rules_proof/sample_files.h"

/// combine(op(split(x))) == op(x) for every row of every rule; unproven_test.cpp says that none is
/// forgotten.
namespace tessera::test {
namespace rows_test {

class Rules : public testing::TestWithParam<std::string> {};

TEST_P(Rules, EveryRowIsRight) {
  auto lines = samples_of(GetParam());
  std::erase_if(lines, [](const auto& line) { return draws(line.substr(0, line.find(' '))); });
  prove_lines(lines);
}

INSTANTIATE_TEST_SUITE_P(Of, Rules, testing::ValuesIn(sample_families()),
                         [](const auto& info) { return info.param; });

TEST(RulesOfThePointwiseTable, EveryRowIsRight) {
  EXPECT_GT(prove_lines(pointwise_samples()).rows, 5'000);
}

}  // namespace rows_test
}  // namespace tessera::test
