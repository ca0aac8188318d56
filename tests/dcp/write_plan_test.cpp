#include "tessera/dcp/write_plan.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>

#include "tests/support_pure/expect_error.h"
#include "tests/support_pure/random_shardings.h"

namespace tessera::dcp {
namespace write_plan_test {

uint64_t bytes_of(const Box& box) { return static_cast<uint64_t>(box.numel()) * 4; }

std::vector<Offer> offers_of(const std::vector<Sharding>& shardings) {
  std::vector<Offer> out;
  for (size_t i = 0; i < shardings.size(); ++i) {
    for (auto& held : all_held_boxes(shardings[i])) {
      const uint64_t bytes = bytes_of(held.box);
      out.push_back({i, std::move(held), bytes});
    }
  }
  return out;
}

TEST(HeldBoxes, OfAStridedShardAreSeveral) {
  const auto boxes = all_held_boxes(Sharding::parse("dp=2,tp=2 : SS0(2),R : 8x3"));
  ASSERT_EQ(boxes.size(), 4u);
  EXPECT_EQ(boxes[0].box, (Box{{0, 0}, {2, 3}}));
  EXPECT_EQ(boxes[1].box, (Box{{4, 0}, {6, 3}}));
  EXPECT_EQ(boxes[0].ranks, (std::vector<int>{0, 1}));
  EXPECT_EQ(boxes[2].ranks, (std::vector<int>{2, 3}));
  EXPECT_THROW(all_held_boxes(Sharding::parse("tp=2 : P(sum) : 8")), InvalidArgument);
}

TEST(WritePlan, WritesReplicatedDataOnceAndEvenly) {
  std::vector<Sharding> shardings;
  for (int i = 0; i < 12; ++i) shardings.push_back(Sharding::parse("dp=4 : R : 100x10"));
  std::map<int, uint64_t> load;
  const auto plan = plan_writes(offers_of(shardings), {.world_size = 4});
  ASSERT_EQ(plan.size(), 12u);
  for (const auto& write : plan) load[write.writer] += bytes_of(write.box);
  for (int rank = 0; rank < 4; ++rank) EXPECT_EQ(load[rank], 3u * 4000);
}

TEST(WritePlan, SplitsOneLargeReplicatedTensor) {
  const auto offers = offers_of({Sharding::parse("dp=4 : R : 1x1024x4096")});
  const auto plan = plan_writes(offers, {.world_size = 4});
  ASSERT_EQ(plan.size(), 4u);
  for (int i = 0; i < 4; ++i) {
    EXPECT_EQ(plan[static_cast<size_t>(i)].writer, i);
    EXPECT_EQ(plan[static_cast<size_t>(i)].box, (Box{{0, 256 * i, 0}, {1, 256 * (i + 1), 4096}}));
  }
  EXPECT_EQ(plan_writes(offers, {.world_size = 4, .split = false}).size(), 1u);
}

TEST(WritePlan, GivesReplicatedDataToRanksThatHaveLess) {
  const auto plan = plan_writes(
      offers_of({Sharding::parse("dp=2 : S0[900,100] : 1000"), Sharding::parse("dp=2 : R : 500")}),
      {.world_size = 2});
  EXPECT_EQ(plan.back().writer, 1);
}

/// Every element of every tensor is written exactly once, by a rank that holds it.
TEST(WritePlan, CoversEveryTensorOnce) {
  test::Rng rng(3);
  for (int round = 0; round < 200; ++round) {
    const Sharding sharding = test::random_sharding(rng, test::random_mesh(rng),
                                                    test::random_shape(rng), {.partial = false});
    int world = 1;
    for (const int rank : sharding.mesh().ranks()) world = std::max(world, rank + 1);
    int64_t written = 0;
    for (const auto& write : plan_writes(offers_of({sharding}), {.world_size = world})) {
      written += write.box.numel();
      const auto coordinate = sharding.mesh().coordinate_of(write.writer);
      ASSERT_TRUE(coordinate.has_value());
      const auto held = held_boxes(sharding, *coordinate);
      EXPECT_TRUE(std::ranges::any_of(held, [&](const Box& box) {
        for (size_t d = 0; d < box.begin.size(); ++d) {
          if (write.box.begin[d] < box.begin[d] || write.box.end[d] > box.end[d]) return false;
        }
        return true;
      })) << sharding.to_text();
    }
    EXPECT_EQ(written, sharding.numel()) << sharding.to_text();
  }
}

}  // namespace write_plan_test
}  // namespace tessera::dcp
