// Implicit gathers are kept for the next ops, and dropped when they no longer hold.
#include "tessera/dtensor/tensor/kept_gathers.h"

#include <ATen/Functions.h>
#include <gtest/gtest.h>

#include "tessera/base/errors.h"
#include "tessera/dtensor/dtensor.h"
#include "tessera/observe/expect.h"
#include "tessera/observe/recorder.h"
#include "tests/support/ranks.h"
#include "tests/support/training.h"

namespace tessera::test {
namespace kept_gathers_test {

at::Tensor placed(const std::vector<int64_t>& shape, uint64_t seed, const DeviceMesh& mesh,
                  Placement as) {
  return distribute_tensor(test_numbers(shape, seed), mesh, {std::move(as)});
}

/// Small enough that gathering the weight would cost more.
at::Tensor rows(const DeviceMesh& mesh) { return placed({2, 5, 6}, 1, mesh, Shard(1)); }
at::Tensor weight(const DeviceMesh& mesh, uint64_t seed) {
  return placed({64, 6}, seed, mesh, Shard(0)).requires_grad_();
}

TEST(KeptGathers, ProjectionsOfOneInputGatherItOnceEachWay) {
  test::run_ranks(2, [](int) {
    const DeviceMesh mesh = comm::init_device_mesh("tp=2");
    const at::Tensor wq = weight(mesh, 2), wk = weight(mesh, 3), wv = weight(mesh, 4);
    const at::Tensor x = rows(mesh).mul(2).requires_grad_();
    comm::Recorder recorder(*comm::current_world());
    const at::Tensor q = at::linear(x, wq), k = at::linear(x, wk), v = at::linear(x, wv);
    EXPECT_EQ(comm::expect_comm(recorder, "1 all_gather on tp"), "");
    EXPECT_EQ(placements(q)[0], Shard(2));
    recorder.clear();
    (q.square() + k.square() + v.square()).sum().backward();
    EXPECT_EQ(recorder.count(comm::CommOp::all_gather), 0) << recorder.to_text();
    const at::Tensor plain_x = full_tensor(x).detach().requires_grad_();
    const at::Tensor plain_w = full_tensor(wq).detach().requires_grad_();
    at::linear(plain_x, plain_w).square().sum().backward();
    EXPECT_TRUE(full_tensor(wq.grad()).allclose(plain_w.grad()));
  });
}

TEST(KeptGathers, AWriteToTheTensorDropsItsCopy) {
  test::run_ranks(2, [](int) {
    const DeviceMesh mesh = comm::init_device_mesh("tp=2");
    const at::Tensor w = weight(mesh, 2).detach();
    at::Tensor x = rows(mesh);
    const at::Tensor first = at::linear(x, w);
    comm::Recorder recorder(*comm::current_world());
    x.mul_(2);
    EXPECT_TRUE(full_tensor(at::linear(x, w)).allclose(full_tensor(first) * 2));
    x.select(0, 0).zero_();  // through a view
    EXPECT_EQ(full_tensor(at::linear(x, w)).select(0, 0).abs().sum().item<double>(), 0);
    to_local(x).zero_();  // in the local tensor
    EXPECT_EQ(full_tensor(at::linear(x, w)).abs().sum().item<double>(), 0);
  });
}

TEST(KeptGathers, OnlyTheLastAreKept) {
  test::run_ranks(2, [](int) {
    const DeviceMesh mesh = comm::init_device_mesh("tp=2");
    const at::Tensor w = weight(mesh, 2).detach();
    std::vector<at::Tensor> inputs;
    for (size_t i = 0; i <= dtensor::kMostGathers; ++i) {
      inputs.push_back(rows(mesh));
      at::linear(inputs.back(), w);
    }
    comm::Recorder recorder(*comm::current_world());
    at::linear(inputs.back(), w);
    EXPECT_EQ(comm::expect_comm(recorder, "nothing"), "");
    at::linear(inputs.front(), w);
    EXPECT_EQ(comm::expect_comm(recorder, "1 all_gather on tp"), "");
  });
}

/// The memory of a copy is released with its tensor.
TEST(KeptGathers, AFreedTensorReleasesItsCopy) {
  test::run_ranks(2, [](int) {
    const DeviceMesh mesh = comm::init_device_mesh("tp=2");
    at::Tensor x = rows(mesh);
    const Sharding whole = sharding(x).replicated();
    at::Tensor copy = to_local(redistribute(x, whole));
    dtensor::keep_gather(x, whole, copy);
    EXPECT_TRUE(dtensor::find_gather(x, whole).is_same(copy));
    EXPECT_EQ(copy.use_count(), 2);
    x.reset();
    EXPECT_EQ(copy.use_count(), 1);
  });
}

void write_on_each_rank_to_another(int rank, const Placement& as) {
  const DeviceMesh mesh = comm::init_device_mesh("tp=2");
  const at::Tensor w = weight(mesh, 2).detach();
  std::vector<at::Tensor> x;
  for (const uint64_t seed : {1, 3}) {
    x.push_back(as.is_partial() ? from_local(test_numbers({2, 5, 6}, seed), mesh, {as})
                                : placed({2, 5, 6}, seed, mesh, as));
  }
  const auto use = [&](const at::Tensor& one) {
    return as.is_partial() ? at::relu(one) : at::linear(one, w);
  };
  for (const at::Tensor& one : x) use(one);
  to_local(x[static_cast<size_t>(rank)]).zero_();
  for (const at::Tensor& one : x) use(one);
}

/// The others cannot know of it. The gathers of both ranks are of the same size and number, so the
/// marks alone tell them apart.
TEST(KeptGathers, AWriteOfOneRankAloneIsAnErrorOfAll) {
  for (const Placement& as : {Placement(Shard(1)), Placement(Partial())}) {
    EXPECT_THROW(test::run_ranks(2, [&](int rank) { write_on_each_rank_to_another(rank, as); }),
                 PeerError)
        << as.to_text();
  }
}

/// What a rank computes on another mesh does not change which copies it has.
TEST(KeptGathers, AreThoseOfTheMesh) {
  test::run_ranks(3, [](int rank) {
    const DeviceMesh all = comm::init_device_mesh("tp=3");
    const DeviceMesh left = comm::init_device_mesh("tp=2@0,1");
    const DeviceMesh right = comm::init_device_mesh("tp=2@1,2");
    const auto many = [](const DeviceMesh& mesh) {
      std::vector<at::Tensor> inputs;
      const at::Tensor w = weight(mesh, 2).detach();
      for (size_t i = 0; i <= dtensor::kMostGathers; ++i) {
        inputs.push_back(rows(mesh));
        at::linear(inputs.back(), w);
      }
    };
    if (rank == 2) return many(right);
    const at::Tensor x = rows(left);
    const at::Tensor w = weight(left, 2).detach();
    const at::Tensor first = at::linear(x, w);
    if (rank == 1) many(right);
    EXPECT_TRUE(full_tensor(at::linear(x, w)).equal(full_tensor(first)));
  });
}

/// The ranks of one row may run ops of their own that communicate within the row.
TEST(KeptGathers, AreThoseOfTheAxes) {
  test::run_ranks(4, [](int rank) {
    const DeviceMesh mesh = comm::init_device_mesh("dp=2,tp=2");
    const auto rows_over = [&](std::vector<Placement> as) {
      return distribute_tensor(test_numbers({2, 5, 6}, 1), mesh, std::move(as));
    };
    const at::Tensor w = distribute_tensor(test_numbers({64, 6}, 2), mesh, {Replicate(), Shard(0)});
    const at::Tensor over_tp = rows_over({Replicate(), Shard(1)});
    const at::Tensor over_dp = rows_over({Shard(1), Replicate()});
    const Sharding whole = sharding(over_dp).replicated();
    at::linear(over_tp, w);
    if (rank < 2) {
      for (size_t i = 0; i <= dtensor::kMostGathers; ++i) {
        at::linear(over_tp * 1, w);
        at::linear(over_tp, w);
      }
    }
    EXPECT_EQ(full_tensor(over_dp).sizes(), over_dp.sizes());
    EXPECT_TRUE(at::equal(full_tensor(redistribute(over_dp, whole)), full_tensor(over_tp)));
  });
}

}  // namespace kept_gathers_test
}  // namespace tessera::test
