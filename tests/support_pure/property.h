#pragma once

#include <cstdint>
#include <functional>
#include <random>
#include <span>
#include <utility>
#include <vector>

/// Property tests with printed seeds.
///
///   TEST(Boxes, TileTheTensor) {
///     for_each_seed(500, [](Rng& rng) { ... EXPECT_... });
///   }
///
/// A failure prints its seed, and the loop ends there. TESSERA_SEED=17 runs that seed alone.
namespace tessera::test {

/// The same numbers from the same seed with every compiler and standard library.
class Rng {
 public:
  explicit Rng(uint64_t seed) : engine_(seed) {}

  uint64_t next() { return engine_(); }
  /// Both ends included.
  int64_t between(int64_t low, int64_t high) {
    return low + static_cast<int64_t>(next() % static_cast<uint64_t>(high - low + 1));
  }
  int int_between(int low, int high) { return static_cast<int>(between(low, high)); }
  bool chance(int percent) { return between(1, 100) <= percent; }

  template <typename T>
  const T& one_of(const std::vector<T>& values) {
    return values[static_cast<size_t>(between(0, std::ssize(values) - 1))];
  }

  template <typename T>
  void shuffle(std::vector<T>& values) {
    for (size_t i = values.size(); i > 1; --i) {
      std::swap(values[i - 1], values[static_cast<size_t>(between(0, static_cast<int>(i) - 1))]);
    }
  }

 private:
  std::mt19937_64 engine_;
};

/// Whether case `number` of a matrix runs: every one, but one of five under sanitizers
/// (TESSERA_TEST_SLOWDOWN), where each takes about ten times as long.
bool in_sample(int number);

/// Calls `property` with an Rng of each seed 1..count, until one fails or throws; under sanitizers,
/// with the first fifth of them, three at least.
void for_each_seed(int count, const std::function<void(Rng&)>& property);

}  // namespace tessera::test
