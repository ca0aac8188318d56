// All tests above the torch line in one program, as a pure build makes it:
//
//   tests --file=tests/plan/exact_test.cpp     those of one file, beside what gtest itself takes
#include <gtest/gtest.h>

#include <cstdio>
#include <string>
#include <string_view>

namespace {

/// A filter for the tests that a file holds.
std::string tests_of(std::string_view file) {
  std::string filter;
  const auto& all = *testing::UnitTest::GetInstance();
  for (int i = 0; i < all.total_test_suite_count(); ++i) {
    const auto& suite = *all.GetTestSuite(i);
    for (int j = 0; j < suite.total_test_count(); ++j) {
      const auto& test = *suite.GetTestInfo(j);
      if (!std::string_view(test.file()).ends_with(file)) continue;
      filter += std::string(suite.name()) + "." + test.name() + ":";
    }
  }
  return filter;
}

}  // namespace

int main(int argc, char** argv) {
  testing::InitGoogleTest(&argc, argv);
  constexpr std::string_view flag = "--file=";
  for (int i = 1; i < argc; ++i) {
    const std::string_view arg = argv[i];
    const std::string filter = arg.starts_with(flag) ? tests_of(arg.substr(flag.size())) : "";
    if (filter.empty()) {
      std::fprintf(stderr, "%s: no tests of such a file\n", argv[i]);
      return 2;
    }
    testing::GTEST_FLAG(filter) = filter;
  }
  return RUN_ALL_TESTS();
}
