#include "tessera/base/philox.h"

#include <algorithm>

namespace tessera {
namespace {

using namespace philox;

/// The number of counters processed together: the inner loops have no dependences between lanes, so
/// the compiler can vectorize them.
constexpr size_t kLanes = 16;
using Lane = std::array<uint32_t, kLanes>;

struct Blocks {
  Lane x0, x1, x2, x3;
};

void cipher(Blocks& b, uint32_t key0, uint32_t key1) {
  for (int round = 0; round < kRounds; ++round) {
    for (size_t i = 0; i < kLanes; ++i) {
      const uint64_t p0 = uint64_t{kMultiplier0} * b.x0[i];
      const uint64_t p1 = uint64_t{kMultiplier1} * b.x2[i];
      b.x0[i] = static_cast<uint32_t>(p1 >> 32) ^ b.x1[i] ^ key0;
      b.x2[i] = static_cast<uint32_t>(p0 >> 32) ^ b.x3[i] ^ key1;
      b.x1[i] = static_cast<uint32_t>(p1);
      b.x3[i] = static_cast<uint32_t>(p0);
    }
    key0 += kWeyl0;
    key1 += kWeyl1;
  }
}

Blocks blocks_from(uint64_t key, uint64_t stream, uint64_t block) {
  Blocks b;
  for (size_t i = 0; i < kLanes; ++i) {
    b.x0[i] = static_cast<uint32_t>(block + i);
    b.x1[i] = static_cast<uint32_t>((block + i) >> 32);
    b.x2[i] = static_cast<uint32_t>(stream);
    b.x3[i] = static_cast<uint32_t>(stream >> 32);
  }
  cipher(b, static_cast<uint32_t>(key), static_cast<uint32_t>(key >> 32));
  return b;
}

}  // namespace

std::array<uint32_t, 4> philox_block(uint64_t key, uint64_t stream, uint64_t block) {
  const Blocks b = blocks_from(key, stream, block);
  return {b.x0[0], b.x1[0], b.x2[0], b.x3[0]};
}

void philox_words(uint64_t key, uint64_t stream, uint64_t first, std::span<uint32_t> out) {
  const uint64_t last = first + out.size();
  constexpr uint64_t kStep = 4 * kLanes;
  for (uint64_t block = first / 4; block * 4 < last; block += kLanes) {
    const Blocks b = blocks_from(key, stream, block);
    std::array<uint32_t, kStep> words;
    for (size_t i = 0; i < kLanes; ++i) {
      words[4 * i] = b.x0[i];
      words[4 * i + 1] = b.x1[i];
      words[4 * i + 2] = b.x2[i];
      words[4 * i + 3] = b.x3[i];
    }
    const uint64_t begin = std::max(first, block * 4);
    const uint64_t end = std::min(last, block * 4 + kStep);
    std::copy(words.begin() + static_cast<int64_t>(begin - block * 4),
              words.begin() + static_cast<int64_t>(end - block * 4),
              out.begin() + static_cast<int64_t>(begin - first));
  }
}

}  // namespace tessera
