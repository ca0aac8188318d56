#include "tessera/base/text.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <limits>

#include "tests/support_pure/expect_error.h"

namespace tessera {
namespace text_test {

using test::expect_error;

struct Point {
  int x;
  std::string to_text() const { return join_text("<", x, ">"); }
};

TEST(Text, JoinsWordsNumbersAndWhateverHasText) {
  EXPECT_EQ(join_text("k is ", 6, " on ", Point{3}, ',', std::string("s"), size_t{7}, 0.5),
            "k is 6 on <3>,s70.5");
  EXPECT_EQ(join_text(), "");
  EXPECT_EQ(join_text(std::numeric_limits<int64_t>::min()), "-9223372036854775808");
  EXPECT_EQ(join_text(int8_t{65}), "65");
}

TEST(Text, CallsAPartThatIsAFunction) {
  int calls = 0;
  EXPECT_EQ(join_text(
                "a", [&] { return ++calls; }, [] { return Point{2}; }),
            "a1<2>");
}

TEST(Text, WritesRealNumbersWithSixDigits) {
  const std::vector<std::pair<double, std::string>> cases = {
      {0, "0"},
      {1, "1"},
      {-2.5, "-2.5"},
      {1.0 / 3, "0.333333"},
      {1e6, "1e+06"},
      {123456, "123456"},
      {1234567, "1.23457e+06"},
      {1e-7, "1e-07"},
      {1e300, "1e+300"},
      {-1.23456e-300, "-1.23456e-300"},
  };
  for (const auto& [value, text] : cases) EXPECT_EQ(join_text(value), text);
}

TEST(Text, ListsAndShapesHaveOneFormEach) {
  const std::vector<int64_t> sizes = {3, 3, 1};
  const std::vector<int> ranks = {0, -2};
  EXPECT_EQ(list_text(sizes), "3,3,1");
  EXPECT_EQ(list_text(sizes, " "), "3 3 1");
  EXPECT_EQ(list_text(ranks), "0,-2");
  EXPECT_EQ(list_text(std::vector<int>{}), "");
  EXPECT_EQ(shape_text(sizes), "3x3x1");
  EXPECT_EQ(shape_text(std::vector<int64_t>{0}), "0");
  EXPECT_EQ(shape_text({}), "scalar");
}

TEST(Text, BytesHaveThreeDigitsAndNeverAnExponent) {
  const std::vector<std::pair<int64_t, std::string>> cases = {
      {0, "0 B"},
      {12, "12 B"},
      {1023, "1023 B"},
      {1024, "1 KiB"},
      {1536, "1.5 KiB"},
      {10 * 1024 + 300, "10.3 KiB"},
      {102348, "99.9 KiB"},
      {102395, "100 KiB"},
      {1000 * 1024, "1000 KiB"},
      {1023 * 1024, "1023 KiB"},
      {1 << 20, "1 MiB"},
      {(int64_t{3} << 30) / 2, "1.5 GiB"},
      {int64_t{5000} << 40, "5000 TiB"},
  };
  for (const auto& [bytes, text] : cases) EXPECT_EQ(bytes_text(bytes), text);
}

TEST(Scanner, SkipsBlanksBetweenTokens) {
  Scanner scanner("  dp =\t4 , \n x ");
  EXPECT_EQ(scanner.expect_name("a name"), "dp");
  EXPECT_TRUE(scanner.accept('='));
  EXPECT_EQ(scanner.accept_int(), 4);
  EXPECT_FALSE(scanner.accept('x'));
  scanner.expect(',');
  EXPECT_FALSE(scanner.done());
  EXPECT_EQ(scanner.peek(), 'x');
  EXPECT_TRUE(scanner.accept('x'));
  EXPECT_TRUE(scanner.done());
  EXPECT_EQ(scanner.peek(), '\0');
  EXPECT_FALSE(scanner.accept('\0'));
  scanner.expect_done();
}

TEST(Scanner, TakesAWordOnlyAsAWhole) {
  Scanner scanner("scalars scalar scalar2");
  EXPECT_FALSE(scanner.accept_word("scalar"));
  EXPECT_TRUE(scanner.accept_word("scalars"));
  EXPECT_TRUE(scanner.accept_word("scalar"));
  EXPECT_FALSE(scanner.accept_word("scalar"));
  EXPECT_FALSE(scanner.accept_word("scalar2 and more"));
}

TEST(Scanner, NamesDoNotStartWithADigit) {
  EXPECT_EQ(Scanner("_a1-b").accept_name(), "_a1");
  EXPECT_EQ(Scanner("1a").accept_name(), std::nullopt);
  EXPECT_EQ(Scanner("-").accept_name(), std::nullopt);
  EXPECT_EQ(Scanner("").accept_name(), std::nullopt);
  EXPECT_EQ(Scanner("\xc3\xa9").accept_name(), std::nullopt);
}

TEST(TableText, PadsColumnsToTheWidestCell) {
  const std::vector<std::vector<std::string>> rows = {
      {"move", "bytes"}, {"all_gather", "4"}, {"", "1024", "late"}, {"a line of its own"}};
  EXPECT_EQ(table_text(rows),
            "move               bytes\n"
            "all_gather         4\n"
            "                   1024   late\n"
            "a line of its own\n");
  EXPECT_EQ(table_text({}), "");
}

TEST(Scanner, ReadsEveryIntegerOf64Bits) {
  EXPECT_EQ(Scanner("-9223372036854775808").accept_int(), std::numeric_limits<int64_t>::min());
  EXPECT_EQ(Scanner("9223372036854775807").accept_int(), std::numeric_limits<int64_t>::max());
  EXPECT_EQ(Scanner("007x").accept_int(), 7);
  EXPECT_EQ(Scanner("+1").accept_int(), std::nullopt);
  EXPECT_EQ(Scanner("-").accept_int(), std::nullopt);
  EXPECT_EQ(Scanner("- 1").accept_int(), std::nullopt);
  expect_error<InvalidArgument>([] { Scanner("9223372036854775808").accept_int(); },
                                {"9223372036854775808", "64 bits"});
}

TEST(Scanner, AFailureShowsTheTextThePlaceAndWhatWasExpected) {
  expect_error<InvalidArgument>(
      [] {
        Scanner scanner("dp = x");
        scanner.expect_name("a name");
        scanner.expect('=');
        scanner.expect_int("a size");
      },
      {"cannot read \"dp = x\": expected a size at position 5, found 'x'"});
  expect_error<InvalidArgument>([] { Scanner("dp").expect(':'); },
                                {"expected ':' at position 0, found 'd'"});
  expect_error<InvalidArgument>([] { Scanner("  ").expect_name("a name"); },
                                {"expected a name at position 2, found the end"});
  expect_error<InvalidArgument>([] { Scanner(" rest").expect_done(); },
                                {"expected the end at position 1, found 'r'"});
}

}  // namespace text_test
}  // namespace tessera
