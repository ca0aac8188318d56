#include "tests/support_pure/property.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <exception>
#include <iostream>
#include <string>

namespace tessera::test {
namespace {

constexpr int kOneOf = 5;

bool is_slow() {
  const char* slowdown = std::getenv("TESSERA_TEST_SLOWDOWN");
  return slowdown != nullptr && std::atoi(slowdown) > 1;
}

}  // namespace

bool in_sample(int number) { return !is_slow() || number % kOneOf == 0; }

void for_each_seed(int count, const std::function<void(Rng&)>& property) {
  uint64_t first = 1;
  const int run = is_slow() ? std::min(count, std::max(3, count / kOneOf)) : count;
  auto last = static_cast<uint64_t>(run);
  if (const char* asked = std::getenv("TESSERA_SEED")) {
    first = last = std::strtoull(asked, nullptr, 10);
  }
  for (uint64_t seed = first; seed <= last; ++seed) {
    SCOPED_TRACE("TESSERA_SEED=" + std::to_string(seed));
    Rng rng(seed);
    try {
      property(rng);
    } catch (const std::exception& e) {
      ADD_FAILURE() << "threw: " << e.what();
    }
    if (!::testing::Test::HasFailure()) continue;
    // The trace above is only of failures on this thread.
    std::cerr << "failed with TESSERA_SEED=" << seed << std::endl;
    return;
  }
}

}  // namespace tessera::test
