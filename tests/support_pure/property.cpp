#include "tests/support_pure/property.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <exception>
#include <iostream>
#include <string>

namespace tessera::test {

void for_each_seed(int count, const std::function<void(Rng&)>& property) {
  uint64_t first = 1;
  auto last = static_cast<uint64_t>(count);
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
