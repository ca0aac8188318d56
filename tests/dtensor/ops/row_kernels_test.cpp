#include <ATen/TensorOperators.h>
#include <ATen/ops/_foreach_norm.h>
#include <ATen/ops/allclose.h>
#include <ATen/ops/argmax.h>
#include <ATen/ops/argmin.h>
#include <ATen/ops/cross_entropy_loss.h>
#include <ATen/ops/embedding.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <ATen/ops/linalg_vector_norm.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/max.h>
#include <ATen/ops/min.h>
#include <ATen/ops/norm.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/tensor.h>
#include <gtest/gtest.h>
#include <torch/version.h>

#include <limits>

#include "tessera/base/errors.h"
#include "tessera/comm/threads.h"
#include "tessera/comm/world.h"
#include "tessera/dtensor/dtensor.h"
#include "tessera/dtensor/policy.h"
#include "tessera/observe/expect.h"
#include "tessera/observe/recorder.h"
#include "tests/support/parts.h"
#include "tests/support/ranks.h"
#include "tests/support/spread.h"

/// Ops that need more than themselves on the local parts.
namespace tessera {
namespace row_kernels_test {

using comm::init_device_mesh;
using test::run_ranks;
using test::spread;
using test::whole_numbers;

constexpr double kInfinity = std::numeric_limits<double>::infinity();

void expect_close(const at::Tensor& sharded, const at::Tensor& plain, const std::string& what) {
  const at::Tensor full = full_tensor(sharded);
  EXPECT_EQ(full.sizes(), plain.sizes()) << what;
  EXPECT_TRUE(at::allclose(full, plain, 1e-12, 1e-12, true)) << what << "\n" << full << plain;
}

TEST(RowKernels, GradientsOfAComplexLinearLayerAreConjugated) {
  if (TORCH_VERSION_MINOR < 13) GTEST_SKIP() << "libtorch's formula of linear refuses complex";
  const at::Tensor x = at::randn({6, 4}, at::kComplexDouble).requires_grad_();
  const at::Tensor w = at::randn({3, 4}, at::kComplexDouble).requires_grad_();
  const at::Tensor b = at::randn({3}, at::kComplexDouble).requires_grad_();
  const at::Tensor up = at::randn({6, 3}, at::kComplexDouble);
  at::linear(x, w, b).backward(up);
  run_ranks(2, [&](int) {
    const DeviceMesh mesh = init_device_mesh("tp=2");
    for (const char* weight : {"R", "S0", "S1"}) {
      const at::Tensor sx = spread(x.detach(), mesh, "S0").requires_grad_();
      const at::Tensor sw = spread(w.detach(), mesh, weight).requires_grad_();
      const at::Tensor sb = spread(b.detach(), mesh, "R").requires_grad_();
      at::linear(sx, sw, sb).backward(spread(up, mesh, "R"));
      expect_close(sx.grad(), x.grad(), weight);
      expect_close(sw.grad(), w.grad(), weight);
      expect_close(sb.grad(), b.grad(), weight);
    }
  });
}

TEST(RowKernels, NormsOverAShardedDim) {
  const at::Tensor full = whole_numbers({5, 3, 4});
  run_ranks(4, [&](int) {
    const DeviceMesh mesh = init_device_mesh("dp=2,tp=2");
    for (const char* placements : {"S0,R", "S0,S0", "S1,S2", "R,S1", "S0,S1", "SS0(2),S0"}) {
      const at::Tensor x = spread(full, mesh, placements);
      for (const double p : {2.0, 3.0, 1.0, 0.0, 0.5, kInfinity, -kInfinity}) {
        const std::string what = std::string(placements) + " p=" + std::to_string(p);
        expect_close(at::linalg_vector_norm(x, p), at::linalg_vector_norm(full, p), what);
        for (const std::vector<int64_t>& dims :
             std::vector<std::vector<int64_t>>{{0}, {1}, {0, 2}, {0, 1, 2}}) {
          expect_close(at::linalg_vector_norm(x, p, dims, true),
                       at::linalg_vector_norm(full, p, dims, true), what + " dims");
        }
      }
      expect_close(at::norm(x), at::norm(full), placements);
      const at::Tensor single = spread(full.to(at::kFloat), mesh, placements);
      expect_close(at::norm(single, 2, at::kDouble), at::norm(full), placements);
    }
  });
}

TEST(RowKernels, NormsReduceNumbersNotTensors) {
  run_ranks(2, [&](int) {
    const DeviceMesh mesh = init_device_mesh("dp=2");
    const at::Tensor x = spread(whole_numbers({64, 64}), mesh, "S0");
    comm::Recorder recorder(*comm::current_world());
    const at::Tensor n = at::linalg_vector_norm(x, 2);
    EXPECT_EQ(comm::expect_comm(recorder, "1 all_reduce on dp, 1 implicit"), "");
    const CommPolicy explicit_only(ImplicitComm::forbid);
    EXPECT_THROW(at::linalg_vector_norm(x, 2), NotSupported);
  });
}

TEST(RowKernels, NormsOfHalvesDoNotOverflow) {
  run_ranks(2, [&](int) {
    const DeviceMesh mesh = init_device_mesh("dp=2");
    const at::Tensor full = at::full({100}, 60.0, at::kHalf);
    expect_close(at::linalg_vector_norm(spread(full, mesh, "S0"), 2),
                 at::linalg_vector_norm(full, 2), "half");
  });
}

TEST(RowKernels, NormsGradient) {
  const at::Tensor full = whole_numbers({5, 3}) + 0.5;
  at::Tensor alone = full.clone().set_requires_grad(true);
  at::linalg_vector_norm(alone, 2).backward();
  run_ranks(4, [&](int) {
    const DeviceMesh mesh = init_device_mesh("dp=2,tp=2");
    at::Tensor x = spread(full, mesh, "S0,S1");
    x.set_requires_grad(true);
    at::linalg_vector_norm(x, 2).backward();
    expect_close(x.grad(), alone.grad(), "gradient");
  });
}

TEST(RowKernels, NormsOfAListAreReducedTogether) {
  const at::Tensor a = whole_numbers({5, 3}, 1);
  const at::Tensor b = whole_numbers({4, 4}, 2);
  const at::Tensor c = whole_numbers({7}, 3).to(at::kFloat);
  run_ranks(4, [&](int) {
    const DeviceMesh mesh = init_device_mesh("dp=2,tp=2");
    const std::vector<at::Tensor> list = {spread(a, mesh, "S0,R"), spread(b, mesh, "S1,R"),
                                          spread(a, mesh, "S0,S1"), spread(c, mesh, "R,S0"),
                                          spread(b, mesh, "R,R")};
    const std::vector<at::Tensor> plain = {a, b, a, c, b};
    for (const double p : {2.0, 1.0, 0.0, 3.0, kInfinity, -kInfinity}) {
      const auto expected = at::_foreach_norm(plain, p);
      const auto found = at::_foreach_norm(list, p);
      for (size_t i = 0; i < list.size(); ++i) {
        EXPECT_EQ(found[i].scalar_type(), expected[i].scalar_type());
        EXPECT_TRUE(at::allclose(full_tensor(found[i]), expected[i], 1e-6, 1e-6)) << i << " " << p;
      }
    }
    comm::Recorder recorder(*comm::current_world());
    at::_foreach_norm(list, 2);
    EXPECT_EQ(comm::expect_comm(recorder,
                                "1 all_reduce on dp, 1 all_reduce on tp, 1 all_reduce on dp+tp"),
              "");
  });
}

TEST(RowKernels, AnEmbeddingWithShardedRows) {
  const at::Tensor table = whole_numbers({7, 4}, 1);
  const at::Tensor index = at::randint(7, {3, 5}, at::kLong);
  for (const int64_t padding : {-1, 2}) {
    at::Tensor alone = table.clone().set_requires_grad(true);
    const at::Tensor weights = whole_numbers({3, 5, 4}, 2);
    const at::Tensor plain = at::embedding(alone, index, padding);
    (plain * weights).sum().backward();
    run_ranks(4, [&](int) {
      const DeviceMesh mesh = init_device_mesh("dp=2,tp=2");
      for (const char* rows : {"S0,S0", "R,S0", "S0,S1", "SS0(2),S0"}) {
        for (const char* where : {"R,R", "S0,R", "S0,S1"}) {
          at::Tensor x = spread(table, mesh, rows);
          x.set_requires_grad(true);
          const at::Tensor y = at::embedding(x, spread(index, mesh, where), padding);
          const std::string what = std::string(rows) + " by " + where;
          expect_close(y.detach(), plain.detach(), what);
          (y * spread(weights, mesh, "R,R")).sum().backward();
          expect_close(x.grad(), alone.grad(), "gradient of " + what);
        }
      }
    });
  }
}

TEST(RowKernels, AShardedTableIsNotGathered) {
  run_ranks(2, [&](int) {
    const DeviceMesh mesh = init_device_mesh("tp=2");
    const at::Tensor table = spread(whole_numbers({100, 8}), mesh, "S0");
    const at::Tensor index = spread(at::randint(100, {4}, at::kLong), mesh, "R");
    const CommPolicy explicit_only(ImplicitComm::forbid);
    const at::Tensor y = at::embedding(table, index);
    EXPECT_EQ(sharding(y).placements_text(), "P(sum)");
  });
}

TEST(RowKernels, CrossEntropyOfAShardedBatch) {
  const at::Tensor logits = whole_numbers({7, 5}).div(4);
  const at::Tensor target = at::tensor({0, 4, 2, -100, 1, 1, 3}, at::kLong);
  const at::Tensor weight = whole_numbers({5}, 9).abs() + 1;
  for (const bool weighted : {false, true}) {
    for (const int64_t reduction : {0, 1, 2}) {
      at::Tensor alone = logits.clone().set_requires_grad(true);
      const at::Tensor plain = at::cross_entropy_loss(
          alone, target, weighted ? std::optional(weight) : std::nullopt, reduction);
      plain.sum().backward();
      run_ranks(4, [&](int) {
        const DeviceMesh mesh = init_device_mesh("dp=2,tp=2");
        for (const char* placements : {"S0,R", "S0,S0", "R,R", "S1,S0"}) {
          at::Tensor x = spread(logits, mesh, placements);
          x.set_requires_grad(true);
          const at::Tensor y = spread(target, mesh, "S0,R");
          const auto by = weighted ? std::optional(spread(weight, mesh, "R,R")) : std::nullopt;
          const at::Tensor loss = at::cross_entropy_loss(x, y, by, reduction);
          expect_close(loss.detach(), plain.detach(), placements);
          loss.sum().backward();
          expect_close(x.grad(), alone.grad(), std::string("gradient ") + placements);
        }
      });
    }
  }
}

TEST(RowKernels, ExtremesAlongAShardedDim) {
  at::Tensor full = at::randint(-3, 4, {5, 6, 3}, at::kLong).to(at::kDouble);  // many ties
  const at::Tensor broken = full.clone();
  broken.index_put_({at::tensor({1, 3}), at::tensor({2, 2})},
                    at::full({}, std::numeric_limits<double>::quiet_NaN(), at::kDouble));
  for (const at::Tensor& values : {full, broken, at::full_like(full, -kInfinity)}) {
    run_ranks(4, [&](int) {
      const DeviceMesh mesh = init_device_mesh("dp=2,tp=2");
      for (const char* placements : {"S0,R", "S0,S0", "S1,S0", "R,S2", "SS1(3),S1", "S0,S1"}) {
        const at::Tensor x = spread(values, mesh, placements);
        for (int64_t dim = -3; dim < 3; ++dim) {
          const std::string what = placements + std::string(" dim ") + std::to_string(dim);
          const bool keep = dim < 0;
          expect_close(at::argmax(x, dim, keep), at::argmax(values, dim, keep), what);
          expect_close(at::argmin(x, dim, keep), at::argmin(values, dim, keep), what);
          const auto [most, where_most] = at::max(x, dim, keep);
          expect_close(most, std::get<0>(at::max(values, dim, keep)), what);
          expect_close(where_most, std::get<1>(at::max(values, dim, keep)), what);
          const auto [least, where_least] = at::min(x, dim, keep);
          expect_close(least, std::get<0>(at::min(values, dim, keep)), what);
          expect_close(where_least, std::get<1>(at::min(values, dim, keep)), what);
        }
        expect_close(at::argmax(x), at::argmax(values), placements);
        expect_close(at::argmin(x, std::nullopt, true), at::argmin(values, std::nullopt, true),
                     placements);
      }
    });
  }
}

TEST(RowKernels, ExtremesOfTruthValues) {
  const at::Tensor full = whole_numbers({5, 6}).remainder(3).eq(0);
  const at::Tensor numbers = whole_numbers({5, 6}).remainder(4);  // with zeros
  at::Tensor alone = numbers.clone().set_requires_grad(true);
  alone.cumprod(0).sum().backward();  // looks for the first zero by max
  run_ranks(3, [&](int) {
    const DeviceMesh mesh = init_device_mesh("tp=3");
    for (const char* placements : {"S0", "S1"}) {
      const auto [most, where_most] = at::max(spread(full, mesh, placements), 0);
      expect_close(most, std::get<0>(full.max(0)), placements);
      expect_close(where_most, std::get<1>(full.max(0)), placements);
      at::Tensor x = spread(numbers, mesh, placements).set_requires_grad(true);
      x.cumprod(0).sum().backward();
      expect_close(x.grad(), alone.grad(), placements);
    }
  });
}

TEST(RowKernels, ExtremesFollowTheShardOrderOfOtherDims) {
  const at::Tensor full = whole_numbers({8, 5});
  run_ranks(8, [&](int) {
    const DeviceMesh mesh = init_device_mesh("a=2,b=2,c=2");
    at::Tensor x = spread(full, mesh, "S0,S0,S1");
    const Sharding before = sharding(x);
    x = redistribute(x, before.with_placements(
                            {before.placements().begin(), before.placements().end()}, {1, 0, 2}));
    expect_close(at::argmax(x, 1), at::argmax(full, 1), "S0#1,S0#0,S1");
    expect_close(std::get<0>(at::min(x, 1)), std::get<0>(at::min(full, 1)), "S0#1,S0#0,S1");
  });
}

TEST(RowKernels, ExtremesOfRaggedAndEmptyParts) {
  const at::Tensor full = whole_numbers({6, 2});
  run_ranks(3, [&](int rank) {
    const DeviceMesh mesh = init_device_mesh("dp=3");
    const std::vector<int64_t> begin = {0, 0, 5, 6};
    const at::Tensor x = from_local(
        full.slice(0, begin[static_cast<size_t>(rank)], begin[static_cast<size_t>(rank) + 1]), mesh,
        {Shard(0)});
    expect_close(at::argmax(x, 0), at::argmax(full, 0), "ragged");
    expect_close(std::get<0>(at::min(x, 0)), std::get<0>(at::min(full, 0)), "ragged");
    expect_close(at::argmin(x), at::argmin(full), "ragged");
  });
}

TEST(RowKernels, MaxsGradientReachesTheRankThatHasIt) {
  const at::Tensor full = at::randn({6, 4}, at::kDouble);
  at::Tensor alone = full.clone().set_requires_grad(true);
  std::get<0>(at::max(alone, 0)).sum().backward();
  run_ranks(3, [&](int) {
    const DeviceMesh mesh = init_device_mesh("dp=3");
    at::Tensor x = spread(full, mesh, "S0");
    x.set_requires_grad(true);
    std::get<0>(at::max(x, 0)).sum().backward();
    expect_close(x.grad(), alone.grad(), "gradient");
  });
}

TEST(RowKernels, ARankOutsideTheMeshPassesThrough) {
  const at::Tensor full = whole_numbers({6, 4});
  run_ranks(3, [&](int rank) {
    const DeviceMesh mesh = DeviceMesh::parse("dp=2@0,2").in_world(comm::current_world());
    const at::Tensor x = spread(full, mesh, "S0");
    at::Tensor y = at::relu(x).matmul(spread(full, mesh, "R").t()) + 1;
    y.mul_(2);
    const at::Tensor most = std::get<0>(at::max(y, 0));
    EXPECT_EQ(y.sizes(), (at::IntArrayRef{6, 6}));
    EXPECT_EQ(most.sizes(), (at::IntArrayRef{6}));
    const at::Tensor plain = (at::relu(full).matmul(full.t()) + 1) * 2;
    if (rank != 1) {
      EXPECT_TRUE(at::equal(full_tensor(y), plain));
      EXPECT_TRUE(at::equal(full_tensor(most), std::get<0>(at::max(plain, 0))));
    } else {
      EXPECT_EQ(to_local(y).numel(), 0);
    }
  });
}

}  // namespace row_kernels_test
}  // namespace tessera
