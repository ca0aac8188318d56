#include <ATen/CPUGeneratorImpl.h>
#include <ATen/TensorOperators.h>
#include <ATen/ops/bernoulli.h>
#include <ATen/ops/dropout.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <ATen/ops/multinomial.h>
#include <ATen/ops/native_dropout.h>
#include <ATen/ops/normal.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/poisson.h>
#include <ATen/ops/rand_like.h>
#include <ATen/ops/randint_like.h>
#include <ATen/ops/randn_like.h>
#include <ATen/ops/rrelu.h>
#include <ATen/ops/scaled_dot_product_attention.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include <functional>

#include "tessera/base/errors.h"
#include "tessera/comm/rank_generator.h"
#include "tessera/comm/world.h"
#include "tessera/dtensor/dtensor.h"
#include "tessera/observe/expect.h"
#include "tessera/observe/recorder.h"
#include "tests/support/parts.h"
#include "tests/support/ranks.h"

namespace tessera {
namespace random_test {

using comm::init_device_mesh;
using test::run_ranks;

using Draw = std::function<at::Tensor(const at::Tensor& like)>;

struct NamedDraw {
  const char* name;
  Draw draw;
};

at::Tensor fresh(const at::Tensor& x) { return x.clone(); }

std::vector<NamedDraw> every_draw() {
  return {
      {"uniform_", [](const auto& x) { return fresh(x).uniform_(-2, 3); }},
      {"normal_", [](const auto& x) { return fresh(x).normal_(1, 4); }},
      {"log_normal_", [](const auto& x) { return fresh(x).log_normal_(0.5, 0.25); }},
      {"exponential_", [](const auto& x) { return fresh(x).exponential_(2); }},
      {"cauchy_", [](const auto& x) { return fresh(x).cauchy_(1, 2); }},
      {"geometric_", [](const auto& x) { return fresh(x).geometric_(0.3); }},
      {"random_", [](const auto& x) { return fresh(x).random_(); }},
      {"random_to", [](const auto& x) { return fresh(x).random_(17); }},
      {"random_from", [](const auto& x) { return fresh(x).random_(-5, 17); }},
      {"bernoulli_", [](const auto& x) { return fresh(x).bernoulli_(0.3); }},
      {"bernoulli_ by", [](const auto& x) { return fresh(x).bernoulli_(at::sigmoid(x)); }},
      {"bernoulli", [](const auto& x) { return at::bernoulli(at::sigmoid(x)); }},
      {"bernoulli.p", [](const auto& x) { return at::bernoulli(x, 0.3); }},
      {"rand_like", [](const auto& x) { return at::rand_like(x); }},
      {"randn_like", [](const auto& x) { return at::randn_like(x); }},
      {"randint_like", [](const auto& x) { return at::randint_like(x, 100); }},
      {"randint_like low", [](const auto& x) { return at::randint_like(x, -7, 100, at::kLong); }},
      {"normal of", [](const auto& x) { return at::normal(x, x.abs() + 1); }},
      {"normal of mean", [](const auto& x) { return at::normal(x, 2.0); }},
      {"normal of std", [](const auto& x) { return at::normal(1.0, x.abs()); }},
      {"dropout", [](const auto& x) { return at::dropout(x, 0.4, true); }},
      {"native_dropout",
       [](const auto& x) { return std::get<0>(at::native_dropout(x, 0.4, true)); }},
      {"rrelu", [](const auto& x) { return at::rrelu(x, 0.1, 0.3, true); }},
      {"poisson", [](const auto& x) { return at::poisson(x.abs()); }},
  };
}

/// What one rank draws for `full` under a seed.
at::Tensor drawn_alone(const at::Tensor& full, const Draw& draw) {
  at::Tensor out;
  run_ranks(1, [&](int) {
    comm::manual_seed(11);
    const DeviceMesh mesh = init_device_mesh("all=1");
    out = full_tensor(draw(distribute_tensor(full, mesh, {Replicate()})));
  });
  return out;
}

at::Tensor numbers(std::vector<int64_t> shape, at::ScalarType dtype) {
  test::Rng rng(3);
  return test::random_whole_numbers(rng, shape, dtype).div(4).to(dtype);
}

TEST(Random, OneRankAndManyDrawTheSame) {
  for (const auto& shape : std::vector<std::vector<int64_t>>{{6, 5}, {7, 3, 4}, {1, 9}}) {
    const at::Tensor full = numbers(shape, at::kFloat);
    for (const auto& [name, draw] : every_draw()) {
      const at::Tensor alone = drawn_alone(full, draw);
      run_ranks(4, [&](int) {
        const DeviceMesh mesh = init_device_mesh("dp=2,tp=2");
        for (const char* placements : {"S0,R", "R,S1", "S1,S0", "S0,S0", "S1,S1", "SS0(2),S0"}) {
          comm::manual_seed(11);
          const at::Tensor x = distribute_tensor(full, mesh, parse_placements(placements));
          EXPECT_TRUE(at::equal(full_tensor(draw(x)), alone)) << name << " " << placements;
        }
      });
    }
  }
}

TEST(Random, DTypesDrawWithinTheirRange) {
  for (const auto dtype : {at::kFloat, at::kDouble, at::kHalf, at::kBFloat16}) {
    run_ranks(3, [&](int) {
      const DeviceMesh mesh = init_device_mesh("dp=3");
      comm::manual_seed(5);
      const at::Tensor x =
          distribute_tensor(at::zeros({200, 100}, at::TensorOptions(dtype)), mesh, {Shard(0)})
              .uniform_();
      const at::Tensor drawn = full_tensor(x).to(at::kDouble);
      EXPECT_GE(drawn.min().item<double>(), 0);
      EXPECT_LT(drawn.max().item<double>(), 1);
      EXPECT_NEAR(drawn.mean().item<double>(), 0.5, 0.01);
      EXPECT_NEAR(drawn.var().item<double>(), 1.0 / 12, 0.003);
      const at::Tensor n = full_tensor(at::randn_like(x)).to(at::kDouble);
      EXPECT_NEAR(n.mean().item<double>(), 0, 0.03);
      EXPECT_NEAR(n.var().item<double>(), 1, 0.03);
      EXPECT_NEAR(n.pow(4).mean().item<double>(), 3, 0.2);
    });
  }
  run_ranks(2, [&](int) {
    const DeviceMesh mesh = init_device_mesh("dp=2");
    for (const auto dtype : {at::kByte, at::kChar, at::kInt, at::kLong, at::kBool}) {
      const at::Tensor x = full_tensor(
          distribute_tensor(at::zeros({100}, at::TensorOptions(dtype)), mesh, {Shard(0)})
              .random_());
      EXPECT_GE(x.to(at::kLong).min().item<int64_t>(), 0);
      EXPECT_GT(x.to(at::kLong).max().item<int64_t>(), 0);
    }
    const auto complex = at::zeros({5000}, at::kComplexDouble);
    const at::Tensor z = full_tensor(distribute_tensor(complex, mesh, {Shard(0)}).normal_(0, 1));
    EXPECT_NEAR(at::real(z).var().item<double>(), 0.5, 0.05);
    EXPECT_NEAR(at::imag(z).var().item<double>(), 0.5, 0.05);
    const at::Tensor wide = full_tensor(
        distribute_tensor(at::zeros({4000}, at::kLong), mesh, {Shard(0)})
            .random_(std::numeric_limits<int64_t>::min(), std::numeric_limits<int64_t>::max()));
    EXPECT_NEAR(wide.lt(0).to(at::kDouble).mean().item<double>(), 0.5, 0.05);
  });
}

TEST(Random, DrawsWithoutCommunication) {
  run_ranks(4, [&](int) {
    const DeviceMesh mesh = init_device_mesh("dp=2,tp=2");
    const at::Tensor x = distribute_tensor(at::zeros({8, 6}), mesh, {Shard(0), Shard(1)});
    comm::Recorder recorder(*comm::current_world());
    x.normal_();
    at::dropout(x, 0.5, true);
    at::rand_like(x);
    EXPECT_EQ(comm::expect_comm(recorder, "nothing"), "");
  });
}

TEST(Random, APartialTensorReducesToWhatWasDrawn) {
  const at::Tensor full = at::zeros({4, 3}, at::kDouble);
  const Draw draw = [](const at::Tensor& x) { return x.normal_(); };
  const at::Tensor alone = drawn_alone(full, draw);
  run_ranks(4, [&](int) {
    const DeviceMesh mesh = init_device_mesh("dp=2,tp=2");
    for (const char* placements : {"P,R", "P,P", "P(max),S0", "S1,P(min)", "P(product),R"}) {
      comm::manual_seed(11);
      const Sharding as(mesh, parse_placements(placements), {4, 3}, {.dtype = DType::f64});
      const auto shape = as.local_shape();
      const at::Tensor x =
          from_local(at::zeros(at::IntArrayRef(shape.data(), shape.size()), at::kDouble), mesh,
                     parse_placements(placements));
      EXPECT_TRUE(at::equal(full_tensor(x.normal_()), alone)) << placements;
    }
  });
}

TEST(Random, AGeneratorsStateIsSavedAndRestored) {
  run_ranks(2, [&](int) {
    const DeviceMesh mesh = init_device_mesh("dp=2");
    const at::Tensor x = distribute_tensor(at::zeros({5, 4}), mesh, {Shard(0)});
    auto own = at::make_generator<at::CPUGeneratorImpl>(uint64_t{42});
    const at::Tensor state = own.get_state();
    const at::Tensor first = full_tensor(x.clone().normal_(0, 1, own));
    const at::Tensor second = full_tensor(x.clone().normal_(0, 1, own));
    EXPECT_FALSE(at::equal(first, second));
    own.set_state(state);
    EXPECT_TRUE(at::equal(first, full_tensor(x.clone().normal_(0, 1, own))));

    auto standard = comm::default_generator();
    const at::Tensor before = standard.get_state();
    const at::Tensor drawn = full_tensor(at::rand_like(x));
    standard.set_state(before);
    EXPECT_TRUE(at::equal(drawn, full_tensor(at::rand_like(x))));
    EXPECT_FALSE(at::equal(drawn, full_tensor(at::rand_like(x))));
  });
}

TEST(Random, ShardsDiffer) {
  run_ranks(2, [&](int) {
    const DeviceMesh mesh = init_device_mesh("dp=2");
    const at::Tensor full =
        full_tensor(distribute_tensor(at::zeros({2, 50}), mesh, {Shard(0)}).uniform_());
    EXPECT_FALSE(at::equal(full[0], full[1]));
  });
}

TEST(Random, DropoutsGradientHasItsMask) {
  run_ranks(4, [&](int) {
    const DeviceMesh mesh = init_device_mesh("dp=2,tp=2");
    at::Tensor x = distribute_tensor(at::ones({6, 8}, at::kDouble), mesh, {Shard(0), Shard(1)});
    x.set_requires_grad(true);
    const at::Tensor y = at::dropout(x, 0.25, true);
    y.sum().backward();
    EXPECT_TRUE(at::equal(full_tensor(x.grad()), full_tensor(y.detach())));
  });
}

TEST(Random, AttentionDropsTheSameOnAnyMesh) {
  const at::Tensor q = numbers({2, 4, 6, 8}, at::kDouble).div(8);
  const auto draw = [](const at::Tensor& x) {
    return at::scaled_dot_product_attention(x, x, x, {}, 0.3, true);
  };
  const at::Tensor alone = drawn_alone(q, draw);
  run_ranks(4, [&](int) {
    const DeviceMesh mesh = init_device_mesh("dp=2,tp=2");
    comm::manual_seed(11);
    const at::Tensor x = distribute_tensor(q, mesh, {Shard(0), Shard(1)});
    EXPECT_TRUE(at::allclose(full_tensor(draw(x)), alone, 1e-12, 1e-12));
  });
}

TEST(Random, BadArgumentsAreRefusedOnEveryRank) {
  run_ranks(2, [&](int) {
    const DeviceMesh mesh = init_device_mesh("dp=2");
    const at::Tensor x = distribute_tensor(at::ones({1, 4}), mesh, {Shard(0)});
    EXPECT_ANY_THROW(x.normal_(0, -1));
    EXPECT_ANY_THROW(x.uniform_(2, 1));
    EXPECT_ANY_THROW(x.exponential_(-1));
    EXPECT_ANY_THROW(x.random_(5, 5));
    EXPECT_ANY_THROW(x.bernoulli_(1.5));
    EXPECT_TRUE(at::equal(full_tensor(x), at::ones({1, 4})));
  });
}

}  // namespace random_test
}  // namespace tessera
