#include <ATen/TensorOperators.h>
#include <ATen/ops/allclose.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/randperm.h>
#include <ATen/ops/topk.h>
#include <gtest/gtest.h>

#include <limits>

#include "tessera/base/errors.h"
#include "tessera/comm/threads.h"
#include "tessera/comm/world.h"
#include "tessera/dtensor/dtensor.h"
#include "tessera/dtensor/policy.h"
#include "tessera/observe/expect.h"
#include "tessera/observe/recorder.h"
#include "tests/support/ranks.h"
#include "tests/support/spread.h"

/// topk along a dim that is sharded.
namespace tessera {
namespace topk_test {

using comm::init_device_mesh;
using test::run_ranks;
using test::spread;

/// No two alike, so that there is one answer.
at::Tensor distinct(std::vector<int64_t> shape) {
  return at::randperm(c10::multiply_integers(shape), at::kDouble).reshape(shape);
}

TEST(TopK, AlongAShardedDimIsThePlainOne) {
  const at::Tensor full = distinct({5, 46, 3});
  run_ranks(4, [&](int) {
    const DeviceMesh mesh = init_device_mesh("dp=2,tp=2");
    for (const char* placements : {"S1,R", "R,S1", "S1,S1", "S0,S1", "S1,S2", "SS1(2),R"}) {
      at::Tensor x = spread(full, mesh, placements);
      if (std::string(placements) == "S1,S1")  // tp shards first
        x = redistribute(x, sharding(x).with_placements({Shard(1), Shard(1)}, {1, 0}));
      for (const int64_t k : {0, 1, 3, 7, 12, 24, 46}) {
        for (const bool largest : {true, false}) {
          const std::string what = placements + std::string(" k ") + std::to_string(k);
          const auto [value, index] = at::topk(x, k, 1, largest);
          const auto [plain_value, plain_index] = at::topk(full, k, 1, largest);
          EXPECT_TRUE(at::equal(full_tensor(value), plain_value)) << what;
          EXPECT_TRUE(at::equal(full_tensor(index), plain_index)) << what;
        }
      }
      const auto [first, where] = at::topk(x, 2, -2, true, /*sorted=*/false);
      EXPECT_TRUE(at::equal(full_tensor(first), full.gather(1, full_tensor(where)))) << placements;
    }
  });
}

TEST(TopK, OfRaggedAndEmptyParts) {
  const at::Tensor full = distinct({30, 2});
  run_ranks(4, [&](int rank) {
    const DeviceMesh mesh = init_device_mesh("dp=4");
    const std::vector<int64_t> begin = {0, 0, 1, 20, 30};
    const auto r = static_cast<size_t>(rank);
    const at::Tensor x = from_local(full.slice(0, begin[r], begin[r + 1]), mesh, {Shard(0)});
    for (const int64_t k : {1, 3, 5}) {
      const auto [value, index] = at::topk(x, k, 0);
      EXPECT_TRUE(at::equal(full_tensor(value), std::get<0>(at::topk(full, k, 0)))) << k;
      EXPECT_TRUE(at::equal(full_tensor(index), std::get<1>(at::topk(full, k, 0)))) << k;
    }
  });
}

TEST(TopK, OfEqualValuesAndNoNumbersGivesTheSameValues) {
  at::Tensor full = at::randint(0, 3, {60, 4}, at::kDouble);
  full.select(0, 17).fill_(std::numeric_limits<double>::quiet_NaN());
  run_ranks(3, [&](int) {
    const DeviceMesh mesh = init_device_mesh("dp=3");
    const auto [value, index] = at::topk(spread(full, mesh, "S0"), 6, 0);
    const at::Tensor values = full_tensor(value), indexes = full_tensor(index);
    EXPECT_TRUE(at::allclose(values, std::get<0>(at::topk(full, 6, 0)), 0, 0, true));
    EXPECT_TRUE(at::allclose(full.gather(0, indexes), values, 0, 0, true));
    // No element twice.
    const at::Tensor sorted = std::get<0>(indexes.sort(0));
    EXPECT_TRUE(sorted.slice(0, 1).gt(sorted.slice(0, 0, 5)).all().item<bool>());
  });
}

TEST(TopK, SendsCandidatesOnlyAndIsRefusedWhereNobodyAskedForMessages) {
  run_ranks(4, [&](int) {
    const DeviceMesh mesh = init_device_mesh("tp=4");
    const at::Tensor logits = spread(distinct({8, 4096}), mesh, "S1");
    comm::Recorder recorder(*comm::current_world());
    at::topk(logits, 16, 1);
    EXPECT_EQ(comm::expect_comm(recorder, "2 all_gather on tp, 2 implicit"), "")
        << recorder.to_text();
    EXPECT_EQ(recorder.bytes(), 2 * 4 * 8 * 16 * 8);  // values and places of 4 ranks
    const CommPolicy explicit_only(ImplicitComm::forbid);
    EXPECT_THROW(at::topk(logits, 16, 1), NotSupported);
  });
}

TEST(TopK, ItsGradientReachesTheRanksThatHaveTheElements) {
  const at::Tensor full = distinct({4, 40});
  const at::Tensor weight = distinct({4, 3});
  at::Tensor alone = full.clone().set_requires_grad(true);
  (std::get<0>(at::topk(alone, 3, 1)) * weight).sum().backward();
  run_ranks(4, [&](int) {
    const DeviceMesh mesh = init_device_mesh("dp=2,tp=2");
    for (const char* placements : {"S0,S1", "S1,S1", "R,S1"}) {
      at::Tensor x = spread(full, mesh, placements);
      x.set_requires_grad(true);
      const at::Tensor loss = (std::get<0>(at::topk(x, 3, 1)) * spread(weight, mesh, "R,R")).sum();
      comm::Recorder recorder(*comm::current_world());
      loss.backward();
      EXPECT_EQ(comm::expect_comm(recorder, "nothing"), "") << placements;
      EXPECT_TRUE(at::equal(full_tensor(x.grad()), alone.grad())) << placements;
    }
  });
}

TEST(TopK, BadCallsSayWhatLibtorchSays) {
  run_ranks(2, [&](int) {
    const at::Tensor x = spread(distinct({40}), init_device_mesh("dp=2"), "S0");
    EXPECT_THROW(at::topk(x, 41, 0), c10::Error);
    EXPECT_THROW(at::topk(x, 1, 3), c10::Error);
  });
}

}  // namespace topk_test
}  // namespace tessera
