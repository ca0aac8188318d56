#include "tests/support_pure/tests_of_file.h"

#include <gtest/gtest.h>

#include <cstdio>
#include <string>
#include <string_view>

namespace tessera::test {
namespace {

/// A filter for the tests that a file holds.
std::string filter_of_file(std::string_view file) {
  std::string filter;
  const auto& all = *::testing::UnitTest::GetInstance();
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

bool take_file_flag(int argc, char** argv) {
  constexpr std::string_view flag = "--file=";
  for (int i = 1; i < argc; ++i) {
    const std::string_view arg = argv[i];
    const std::string filter = arg.starts_with(flag) ? filter_of_file(arg.substr(flag.size())) : "";
    if (filter.empty()) {
      std::fprintf(stderr, "%s: no tests of such a file\n", argv[i]);
      return false;
    }
    GTEST_FLAG_SET(filter, filter);
  }
  return true;
}

}  // namespace tessera::test
