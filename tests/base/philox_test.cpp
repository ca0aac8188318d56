#include "tessera/base/philox.h"

#include <gtest/gtest.h>

#include <vector>

namespace tessera {
namespace philox_test {

std::vector<uint32_t> words(uint64_t key, uint64_t stream, uint64_t first, size_t count) {
  std::vector<uint32_t> out(count);
  philox_words(key, stream, first, out);
  return out;
}

// Counters, keys and answers that the generator's authors publish for philox4x32 with ten rounds.
TEST(Philox, GivesTheKnownAnswers) {
  using Block = std::array<uint32_t, 4>;
  constexpr uint64_t kOnes = ~uint64_t{0};
  EXPECT_EQ(philox_block(0, 0, 0), (Block{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
  EXPECT_EQ(philox_block(kOnes, kOnes, kOnes),
            (Block{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}));
  EXPECT_EQ(philox_block(0x299f31d0a4093822, 0x0370734413198a2e, 0x85a308d3243f6a88),
            (Block{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}));
}

TEST(Philox, AWordHangsOnItsPlaceAlone) {
  const auto all = words(17, 3, 0, 1000);
  for (const uint64_t first : {0, 1, 2, 3, 5, 63, 64, 65, 127, 500}) {
    for (const size_t count : {0, 1, 2, 3, 4, 7, 64, 65, 200}) {
      const auto part = words(17, 3, first, count);
      for (size_t i = 0; i < count; ++i) ASSERT_EQ(part[i], all[first + i]) << first << "+" << i;
    }
  }
  const uint64_t far = (uint64_t{1} << 40) + 7;
  EXPECT_EQ(words(17, 3, far, 9)[8], words(17, 3, far + 8, 1)[0]);
}

TEST(Philox, KeysAndStreamsAreApart) {
  const auto a = words(17, 3, 0, 64);
  EXPECT_NE(a, words(18, 3, 0, 64));
  EXPECT_NE(a, words(17, 4, 0, 64));
  EXPECT_NE(a, words(17 + (uint64_t{1} << 32), 3, 0, 64));
  EXPECT_NE(a, words(17, 3 + (uint64_t{1} << 32), 0, 64));
}

TEST(Philox, BitsAreEven) {
  const auto all = words(5, 0, 0, 1 << 16);
  for (int bit = 0; bit < 32; ++bit) {
    int64_t ones = 0;
    for (uint32_t word : all) ones += word >> bit & 1U;
    EXPECT_NEAR(static_cast<double>(ones) / (1 << 16), 0.5, 0.01) << "bit " << bit;
  }
}

}  // namespace philox_test
}  // namespace tessera
