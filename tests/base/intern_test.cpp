#include "tessera/base/intern.h"

#include <gtest/gtest.h>

#include <atomic>
#include <barrier>
#include <chrono>
#include <string>
#include <thread>
#include <vector>

namespace tessera {
namespace intern_test {

using namespace std::chrono_literals;

struct Word {
  std::string text;
  size_t hash() const { return std::hash<std::string>()(text); }
  bool operator==(const Word&) const = default;
};

/// Every two of these collide.
struct Collider {
  int value;
  std::function<void()> on_compare = nullptr;
  size_t hash() const { return 7; }
  bool operator==(const Collider& other) const {
    if (other.on_compare) other.on_compare();
    if (on_compare) on_compare();
    return value == other.value;
  }
};

TEST(Intern, EqualValuesAreOneObject) {
  InternTable<Word> table;
  const auto a = table.intern({"a"});
  const auto b = table.intern({"b"});
  EXPECT_EQ(a, table.intern({"a"}));
  EXPECT_NE(a, b);
  EXPECT_EQ(a->text, "a");
  EXPECT_EQ(table.size(), 2U);
}

TEST(Intern, TheLastHandleTakesTheEntryOut) {
  InternTable<Word> table;
  auto a = table.intern({"a"});
  auto again = a;
  a.reset();
  EXPECT_EQ(table.size(), 1U);
  again.reset();
  EXPECT_EQ(table.size(), 0U);
  EXPECT_EQ(table.intern({"a"})->text, "a");
  EXPECT_EQ(table.size(), 0U);
}

TEST(Intern, DifferentValuesOfOneHashStayApart) {
  InternTable<Collider> table;
  std::vector<std::shared_ptr<const Collider>> handles;
  for (int i = 0; i < 20; ++i) handles.push_back(table.intern({i}));
  EXPECT_EQ(table.size(), 20U);
  for (int i = 0; i < 20; ++i) EXPECT_EQ(handles[static_cast<size_t>(i)], table.intern({i}));
  handles.erase(handles.begin() + 3, handles.begin() + 17);
  EXPECT_EQ(table.size(), 6U);
  EXPECT_EQ(table.intern({18})->value, 18);
}

struct Chain {
  int length;
  std::shared_ptr<const Chain> next;
  size_t hash() const { return static_cast<size_t>(length); }
  bool operator==(const Chain&) const = default;
};

TEST(Intern, AValueMayHoldHandlesIntoItsOwnTable) {
  InternTable<Chain> table;
  auto chain = table.intern({0, nullptr});
  for (int i = 1; i < 50; ++i) chain = table.intern({i, chain});
  EXPECT_EQ(table.size(), 50U);
  chain.reset();
  EXPECT_EQ(table.size(), 0U);
}

TEST(Intern, AValueOfTheSameHashMayGoAwayDuringALookUp) {
  InternTable<Collider> table;
  std::atomic<bool> comparing = false;
  std::atomic<bool> gone = false;
  auto first = table.intern({1});
  std::thread other([&] {
    while (!comparing) std::this_thread::yield();
    first.reset();
    gone = true;
  });
  // The look-up of 2 compares it with 1 while the other thread releases the last handle of 1.
  const auto second = table.intern({2, [&] {
                                      comparing = true;
                                      const auto end = std::chrono::steady_clock::now() + 100ms;
                                      while (!gone && std::chrono::steady_clock::now() < end)
                                        std::this_thread::yield();
                                    }});
  other.join();
  EXPECT_EQ(second->value, 2);
  EXPECT_EQ(table.size(), 1U);
}

TEST(Intern, ThreadsThatInternTheSameValuesGetTheSameObjects) {
  constexpr int kThreads = 6;
  constexpr int kValues = 40;
  InternTable<Word> table;
  std::vector<std::vector<const Word*>> seen(kThreads);
  std::barrier meet(kThreads);
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      for (int round = 0; round < 200; ++round) {
        for (int i = 0; i < kValues; ++i) table.intern({std::to_string((i * 7 + t) % kValues)});
      }
      std::vector<std::shared_ptr<const Word>> held;
      for (int i = 0; i < kValues; ++i) held.push_back(table.intern({std::to_string(i)}));
      meet.arrive_and_wait();
      for (const auto& handle : held) seen[static_cast<size_t>(t)].push_back(handle.get());
      meet.arrive_and_wait();
    });
  }
  for (auto& thread : threads) thread.join();
  for (const auto& one : seen) EXPECT_EQ(one, seen[0]);
  EXPECT_EQ(table.size(), 0U);
}

TEST(HashMix, DependsOnTheOrder) {
  EXPECT_NE(hash_mix(hash_mix(0, 1), 2), hash_mix(hash_mix(0, 2), 1));
  EXPECT_NE(hash_mix(0, 0), 0U);
}

}  // namespace intern_test
}  // namespace tessera
