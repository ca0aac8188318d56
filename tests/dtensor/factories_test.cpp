#include "tessera/dtensor/factories.h"

#include <gtest/gtest.h>

#include "tessera/base/errors.h"
#include "tessera/comm/rank_generator.h"
#include "tessera/dtensor/dtensor.h"
#include "tessera/observe/expect.h"
#include "tessera/observe/recorder.h"
#include "tests/support/ranks.h"

namespace tessera {
namespace factories_test {

using comm::init_device_mesh;
using test::run_ranks;

/// Uneven, strided, empty on some ranks, nested, replicated.
const std::vector<const char*> kPlacements = {"S0,S0", "S0,S1", "SS0(2),R",
                                              "R,R",   "S1,R",  "S0,SS0(2)"};

TEST(Factories, EachRankMakesItsPartWithoutAMessage) {
  run_ranks(4, [](int) {
    const DeviceMesh mesh = init_device_mesh("dp=2,tp=2");
    comm::Recorder recorder(*comm::current_world());
    std::vector<std::pair<at::Tensor, at::Tensor>> pairs;  // made, and what it should be
    for (const char* text : kPlacements) {
      const auto placements = parse_placements(text);
      for (const std::vector<int64_t>& shape : {std::vector<int64_t>{5, 3}, {1, 2}, {0, 4}}) {
        pairs.emplace_back(zeros(shape, mesh, placements), at::zeros(shape));
        pairs.emplace_back(ones(shape, mesh, placements, at::kDouble),
                           at::ones(shape, at::kDouble));
        pairs.emplace_back(full(shape, 7, mesh, placements), at::full(shape, 7));
        pairs.emplace_back(full(shape, 0.5, mesh, placements), at::full(shape, 0.5));
        pairs.emplace_back(full(shape, true, mesh, placements), at::full(shape, true));
        pairs.emplace_back(eye(shape[0], shape[1], mesh, placements), at::eye(shape[0], shape[1]));
        const at::Tensor raw = empty(shape, mesh, placements, at::kInt);
        EXPECT_EQ(raw.sizes(), at::IntArrayRef(shape));
        EXPECT_EQ(raw.scalar_type(), at::kInt);
        EXPECT_TRUE(std::ranges::equal(to_local(raw).sizes(), local_shape(raw)));
      }
    }
    EXPECT_EQ(comm::expect_comm(recorder, "nothing"), "");
    for (const auto& [made, want] : pairs) {
      ASSERT_TRUE(is_dtensor(made));
      ASSERT_EQ(made.scalar_type(), want.scalar_type());
      ASSERT_TRUE(at::equal(full_tensor(made), want)) << sharding(made).to_text();
    }
  });
}

TEST(Factories, ArangeCountsOverShards) {
  run_ranks(4, [](int) {
    const DeviceMesh mesh = init_device_mesh("dp=2,tp=2");
    for (const char* text : {"S0,S0", "SS0(2),R", "R,R", "R,S0"}) {
      const auto placements = parse_placements(text);
      EXPECT_TRUE(at::equal(full_tensor(arange(10, mesh, placements)), at::arange(10)));
      EXPECT_TRUE(
          at::equal(full_tensor(arange(3, -8, -2, mesh, placements)), at::arange(3, -8, -2)));
      EXPECT_TRUE(at::equal(full_tensor(arange(2, 2, 1, mesh, placements)), at::arange(2, 2, 1)));
      EXPECT_TRUE(at::equal(full_tensor(arange(0.0, 2.0, 0.25, mesh, placements, at::kDouble)),
                            at::arange(0.0, 2.0, 0.25, at::kDouble)));
      EXPECT_TRUE(at::equal(full_tensor(arange(5, mesh, placements, at::kFloat)),
                            at::arange(5, at::kFloat)));
      EXPECT_TRUE(at::equal(full_tensor(arange(4.5, mesh, placements)), at::arange(4.5)));
    }
    EXPECT_THROW(arange(0, 4, -1, mesh), InvalidArgument);
    EXPECT_THROW(arange(0, 4, 0, mesh), InvalidArgument);
  });
}

TEST(Factories, NoPlacementsMeansReplicated) {
  run_ranks(2, [](int) {
    const DeviceMesh mesh = init_device_mesh("tp=2");
    EXPECT_TRUE(sharding(zeros({3}, mesh)).is_replicated());
    const at::Tensor x = ones({3}, mesh, {}, at::TensorOptions(at::kDouble).requires_grad(true));
    EXPECT_TRUE(x.requires_grad() && x.is_leaf());
    const at::Tensor random = rand({64}, mesh);
    EXPECT_TRUE(random.ge(0).all().item<bool>() && random.lt(1).all().item<bool>());
    EXPECT_LT(randn({64}, mesh).min().item<float>(), 0);
  });
}

/// A drawn tensor of this placement, whole; on the calling rank.
at::Tensor drawn(const char* mesh_text, const char* placements) {
  comm::manual_seed(11);
  const DeviceMesh mesh = init_device_mesh(mesh_text);
  const auto at = parse_placements(placements);
  return at::cat({full_tensor(rand({5, 3}, mesh, at)), full_tensor(randn({5, 3}, mesh, at))});
}

TEST(Factories, RandomValuesAreAFunctionOfTheGlobalIndexAlone) {
  at::Tensor alone;
  run_ranks(1, [&](int) { alone = drawn("tp=1", "R"); });
  run_ranks(2, [&](int) {
    EXPECT_TRUE(at::equal(drawn("tp=2", "S0"), alone));
    EXPECT_TRUE(at::equal(drawn("tp=2", "R"), alone));
  });
  run_ranks(4, [&](int) { EXPECT_TRUE(at::equal(drawn("dp=2,tp=2", "S1,S0"), alone)); });
}

TEST(Factories, LikeAnotherKeepsItsPlacement) {
  run_ranks(2, [](int) {
    const DeviceMesh mesh = init_device_mesh("tp=2");
    const at::Tensor x = ones({5, 3}, mesh, {Shard(0)});
    for (const at::Tensor& like : {at::zeros_like(x), at::ones_like(x), at::empty_like(x),
                                   at::full_like(x, 2), x.new_zeros({5, 3}), x.new_ones({5, 3})}) {
      EXPECT_EQ(sharding(like), sharding(x));
    }
    EXPECT_EQ(at::zeros_like(x, at::kDouble).scalar_type(), at::kDouble);
    EXPECT_TRUE(at::equal(full_tensor(at::full_like(x, 2)), at::full({5, 3}, 2.0)));
  });
}

TEST(Factories, BadRequestsAreRefused) {
  run_ranks(2, [](int) {
    const DeviceMesh mesh = init_device_mesh("tp=2");
    EXPECT_THROW(zeros({3}, mesh, {Partial()}), InvalidArgument);
    EXPECT_THROW(zeros({3}, mesh, {Shard(1)}), InvalidArgument);
    EXPECT_THROW(zeros({3}, mesh, {Shard(0), Shard(0)}), InvalidArgument);
    EXPECT_THROW(zeros({3}, DeviceMesh()), InvalidArgument);
    EXPECT_THROW(zeros({-3}, mesh), InvalidArgument);
    EXPECT_THROW(zeros({3}, mesh, {}, at::TensorOptions().layout(at::kSparse)), InvalidArgument);
    EXPECT_THROW(zeros({3}, mesh, {}, at::TensorOptions(at::kMeta)), InvalidArgument);
  });
}

TEST(Factories, RanksOutsideTheMeshHoldNothing) {
  run_ranks(3, [](int rank) {
    const DeviceMesh mesh = init_device_mesh("tp=2");
    const at::Tensor x = arange(10, mesh, {Shard(0)});
    EXPECT_EQ(x.size(0), 10);
    EXPECT_EQ(to_local(x).numel(), rank < 2 ? 5 : 0);
    EXPECT_EQ(to_local(eye(4, mesh, {Shard(0)})).numel(), rank < 2 ? 8 : 0);
  });
}

}  // namespace factories_test
}  // namespace tessera
