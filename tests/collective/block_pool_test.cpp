#include "tessera/collective/block_pool.h"

#include <ATen/core/Tensor.h>
#include <gtest/gtest.h>

#include <thread>

namespace tessera::comm {
namespace block_pool_test {

constexpr size_t kMiB = 1U << 20;

at::Tensor bytes(size_t count) { return pooled_empty({static_cast<int64_t>(count)}, at::kByte); }

TEST(BlockPool, AFreedBlockServesTheNextBufferOfItsSize) {
  release_kept_blocks();
  const void* first = bytes(3 * kMiB).data_ptr();
  EXPECT_EQ(kept_bytes(), 3 * kMiB);
  const at::Tensor again = bytes(3 * kMiB - 5);
  EXPECT_EQ(again.data_ptr(), first);
  EXPECT_EQ(kept_bytes(), 0U);
  const at::Tensor other = bytes(3 * kMiB);
  EXPECT_NE(other.data_ptr(), first);
}

TEST(BlockPool, KeepsNoMoreThanItsLimit) {
  release_kept_blocks();
  {
    std::vector<at::Tensor> many;
    for (size_t used = 0; used < 2 * kMostKeptBytes; used += 32 * kMiB) {
      many.push_back(bytes(32 * kMiB));
    }
  }
  EXPECT_LE(kept_bytes(), kMostKeptBytes);
  EXPECT_GT(kept_bytes(), 0U);
  release_kept_blocks();
  EXPECT_EQ(kept_bytes(), 0U);
}

TEST(BlockPool, ABlockThatIsTooLargeToKeepDrivesNoneOut) {
  release_kept_blocks();
  bytes(kMiB);
  bytes(kMostKeptBytes + kMiB);
  EXPECT_EQ(kept_bytes(), kMiB);
}

TEST(BlockPool, ATensorFromItCanGrowLikeAnyOther) {
  at::Tensor t = pooled_empty({256, 1024}, at::kFloat);
  t.fill_(3);
  t.resize_({512, 1024});
  EXPECT_EQ(t[0][0].item<float>(), 3);
  EXPECT_EQ(t[255][1023].item<float>(), 3);
}

TEST(BlockPool, ThreadsMayFreeEachOthersBlocks) {
  release_kept_blocks();
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([t] {
      for (int i = 0; i < 200; ++i) {
        at::Tensor block = bytes(kSmallestPooledBytes * (1 + static_cast<size_t>(i % 3)));
        auto* first = static_cast<int*>(block.mutable_data_ptr());
        *first = t;
        ASSERT_EQ(*first, t);
        std::thread([gone = std::move(block)] {}).join();
      }
    });
  }
  for (auto& thread : threads) thread.join();
  EXPECT_LE(kept_bytes(), kMostKeptBytes);
}

}  // namespace block_pool_test
}  // namespace tessera::comm
