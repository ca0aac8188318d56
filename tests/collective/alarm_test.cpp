#include "tessera/collective/alarm.h"

#include <gtest/gtest.h>

#include <atomic>
#include <thread>
#include <vector>

namespace tessera::comm {
namespace alarm_test {

using std::chrono::milliseconds;

TEST(Alarm, RingsOnceWhenItsTimeHasPassed) {
  std::atomic<int> rings{0};
  const Alarm alarm(milliseconds(10), [&] { ++rings; });
  while (rings == 0) std::this_thread::sleep_for(milliseconds(10));
  std::this_thread::sleep_for(3 * Alarm::kCoarse);
  EXPECT_EQ(rings, 1);
}

TEST(Alarm, DoesNotRingBeforeItsTimeNorAfterItsEnd) {
  std::atomic<int> rings{0};
  {
    const Alarm late(std::chrono::hours(1), [&] { ++rings; });
    std::this_thread::sleep_for(3 * Alarm::kCoarse);
  }
  EXPECT_EQ(rings, 0);
  for (int i = 0; i < 1000; ++i) Alarm(milliseconds(0), [&] { ++rings; });
  const int now = rings;  // one may have rung while it lived
  std::this_thread::sleep_for(3 * Alarm::kCoarse);
  EXPECT_EQ(rings, now);
}

TEST(Alarm, TheLongestTimeIsNotOver) {
  std::atomic<int> rings{0};
  const Alarm never(milliseconds::max(), [&] { ++rings; });
  std::this_thread::sleep_for(3 * Alarm::kCoarse);
  EXPECT_EQ(rings, 0);
}

TEST(Alarm, ManyThreadsMaySetAndEndThem) {
  std::atomic<int> rings{0};
  std::vector<std::thread> threads;
  for (int t = 0; t < 8; ++t) {
    threads.emplace_back([&] {
      for (int i = 0; i < 2000; ++i) {
        const Alarm outer(std::chrono::hours(1), [&] { ++rings; });
        const Alarm inner(std::chrono::hours(2), [&] { ++rings; });
      }
      const Alarm due(milliseconds(1), [&] { ++rings; });
      while (rings < 8) std::this_thread::sleep_for(milliseconds(5));
    });
  }
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(rings, 8);
}

}  // namespace alarm_test
}  // namespace tessera::comm
