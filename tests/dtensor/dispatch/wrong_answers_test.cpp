// Where distributed tensors have been known to give wrong values without a word. Each is right
// here.
#include <ATen/Functions.h>
#include <gtest/gtest.h>

#include <limits>

#include "tessera/base/errors.h"
#include "tessera/base/text.h"
#include "tessera/comm/rank_generator.h"
#include "tessera/dtensor/dtensor.h"
#include "tests/support/parts.h"
#include "tests/support/ranks.h"
#include "tests/support/spread.h"
#include "tests/support/training.h"

namespace tessera {
namespace wrong_answers_test {

using comm::init_device_mesh;
using test::run_ranks;
using test::spread;
using test::test_numbers;

::testing::AssertionResult near(const at::Tensor& sharded, const at::Tensor& expected) {
  const at::Tensor full = is_dtensor(sharded) ? full_tensor(sharded) : sharded;
  if (full.sizes() == expected.sizes() && at::allclose(full, expected, 1e-10, 1e-10, true)) {
    return ::testing::AssertionSuccess();
  }
  return ::testing::AssertionFailure() << full << "\ninstead of\n" << expected;
}

/// A list that has one tensor twice: both writes go through copies, of which one would be lost.
TEST(WrongAnswers, APartialTensorTwiceInAListIsRefused) {
  run_ranks(2, [](int rank) {
    const DeviceMesh mesh = init_device_mesh("tp=2");
    const auto partial = [&](double value) {
      return from_local(at::full({3}, rank * value, at::kDouble), mesh, {Partial()});
    };
    at::Tensor a = partial(1), b = partial(2);
    at::_foreach_exp_({a, b});
    EXPECT_TRUE(near(a, at::full({3}, std::exp(1.0), at::kDouble)));
    EXPECT_TRUE(near(b, at::full({3}, std::exp(2.0), at::kDouble)));
    EXPECT_THROW(at::_foreach_exp_({a, a}), NotSupported);
    EXPECT_TRUE(near(a, at::full({3}, std::exp(1.0), at::kDouble)));
  });
}

/// The maximum of a NaN is NaN; fmax takes the other number, and the sign of NaN is 0.
TEST(WrongAnswers, AMaximumThatIsNaNIsReducedBeforeOpsThatDropNaN) {
  run_ranks(4, [](int) {
    const DeviceMesh mesh = init_device_mesh("tp=4");
    const at::Tensor full = test_numbers({7, 4}, 1).abs() + 1;
    full[6][1] = full[0][2] = std::numeric_limits<double>::quiet_NaN();
    const at::Tensor y = test_numbers({4}, 2);
    const at::Tensor x = spread(full, mesh, "S0"), other = spread(y, mesh, "R");
    EXPECT_TRUE(near(at::fmax(x.amax(0), other), at::fmax(full.amax(0), y)));
    EXPECT_TRUE(near(at::fmin(other, x.amin(0)), at::fmin(y, full.amin(0))));
    EXPECT_TRUE(near(at::fmax(x.amax(0), x.amax(0)), at::fmax(full.amax(0), full.amax(0))));
    EXPECT_TRUE(near(x.amax(0).sign(), full.amax(0).sign()));
    EXPECT_TRUE(near(at::maximum(x.amax(0), other), at::maximum(full.amax(0), y)));
    EXPECT_TRUE(near(x.amax(0).relu(), full.amax(0).relu()));
  });
}

TEST(WrongAnswers, ReadingAPartialNumberReducesIt) {
  run_ranks(4, [](int rank) {
    const DeviceMesh mesh = init_device_mesh("tp=4");
    const at::Tensor full = test_numbers({8, 3}, 1);
    const at::Tensor sum = spread(full, mesh, "S0").sum();
    EXPECT_TRUE(sharding(sum).has_partial());
    EXPECT_NEAR(sum.item<double>(), full.sum().item<double>(), 1e-12);
    const at::Tensor parts = from_local(at::full({}, rank + 1.0, at::kDouble), mesh, {Partial()});
    EXPECT_EQ(parts.item<double>(), 10.0);
    const at::Tensor largest =
        from_local(at::full({1}, rank + 1.0, at::kDouble), mesh, {Partial(ReduceOp::max)});
    EXPECT_EQ(largest.item<double>(), 4.0);
    EXPECT_TRUE((parts > 9).item<bool>());
  });
}

TEST(WrongAnswers, RaggedPartsAreCountedNotGuessed) {
  run_ranks(4, [](int rank) {
    const DeviceMesh mesh = init_device_mesh("tp=4");
    const at::Tensor mine = test_numbers({rank + 1, 2}, 20 + static_cast<uint64_t>(rank));
    std::vector<at::Tensor> parts;
    for (int r = 0; r < 4; ++r) {
      parts.push_back(test_numbers({r + 1, 2}, 20 + static_cast<uint64_t>(r)));
    }
    const at::Tensor full = at::cat(parts);
    const at::Tensor x = from_local(mine, mesh, {Shard(0)});
    EXPECT_EQ(x.sizes(), full.sizes());
    EXPECT_TRUE(near(x, full));
    EXPECT_TRUE(near(x.mean(0), full.mean(0)));
    EXPECT_TRUE(near(at::mm(x.t(), x), at::mm(full.t(), full)));
    EXPECT_TRUE(near(redistribute(x, {Shard(1)}), full));
    EXPECT_TRUE(near(x + spread(full, mesh, "S0"), full * 2));
    EXPECT_TRUE(near(at::softmax(x, 0), at::softmax(full, 0)));
    EXPECT_TRUE(near(x.narrow(0, 2, 5), full.narrow(0, 2, 5)));
  });
}

/// Any axis may be sharded: the cosine is a quotient of sums, which no rank can take by itself.
TEST(WrongAnswers, CosineEmbeddingLossOfShardedFeatures) {
  for (const char* placements : {"S1", "S0", "R"}) {
    run_ranks(3, [&](int) {
      const DeviceMesh mesh = init_device_mesh("tp=3");
      const at::Tensor sign = at::tensor({1.0, -1.0, 1.0, -1.0}, at::kDouble);
      const auto run = [](const at::Tensor& a, const at::Tensor& b, const at::Tensor& y) {
        const at::Tensor loss = at::cosine_embedding_loss(a, b, y, 0.1);
        loss.backward();
        return std::vector<at::Tensor>{loss.detach(), a.grad(), b.grad()};
      };
      const at::Tensor a = test_numbers({4, 6}, 1).requires_grad_();
      const at::Tensor b = test_numbers({4, 6}, 2).requires_grad_();
      const auto expected = run(a, b, sign);
      const auto got =
          run(spread(a.detach(), mesh, placements).requires_grad_(),
              spread(b.detach(), mesh, placements).requires_grad_(), spread(sign, mesh, "R"));
      for (size_t i = 0; i < expected.size(); ++i) {
        EXPECT_TRUE(near(got[i], expected[i])) << placements << " " << i;
      }
    });
  }
}

using Loss = at::Tensor (*)(const at::Tensor&, const at::Tensor&, int64_t reduction);

/// The gradient of a mean divides by all elements, not by those of a rank.
TEST(WrongAnswers, GradientsOfMeanLosses) {
  const std::vector<std::pair<const char*, Loss>> losses = {
      {"mse",
       [](const at::Tensor& a, const at::Tensor& b, int64_t r) { return at::mse_loss(a, b, r); }},
      {"huber", [](const at::Tensor& a, const at::Tensor& b,
                   int64_t r) { return at::huber_loss(a, b, r, 0.4); }},
      {"smooth_l1", [](const at::Tensor& a, const at::Tensor& b,
                       int64_t r) { return at::smooth_l1_loss(a, b, r, 0.4); }},
      {"l1",
       [](const at::Tensor& a, const at::Tensor& b, int64_t r) { return at::l1_loss(a, b, r); }},
      {"kl_div", [](const at::Tensor& a, const at::Tensor& b,
                    int64_t r) { return at::kl_div(a, b, r, true); }},
  };
  for (const auto& [name, loss] : losses) {
    for (const int64_t reduction : {int64_t{1}, int64_t{2}}) {
      for (const char* placements : {"S0,S0", "S1,R", "S0,S1", "S1,S0"}) {  // 5 rows: uneven, empty
        const at::Tensor a = test_numbers({5, 3}, 3).requires_grad_();
        const at::Tensor b = test_numbers({5, 3}, 4).requires_grad_();
        const at::Tensor expected = loss(a, b, reduction);
        expected.backward();
        run_ranks(6, [&, loss = loss, name = name](int) {
          const DeviceMesh mesh = init_device_mesh("dp=3,tp=2");
          const at::Tensor x = spread(a.detach(), mesh, placements).requires_grad_();
          const at::Tensor y = spread(b.detach(), mesh, "R,S1").requires_grad_();
          const at::Tensor got = loss(x, y, reduction);
          got.backward();
          EXPECT_TRUE(near(got.detach(), expected.detach())) << name << " " << placements;
          EXPECT_TRUE(near(x.grad(), a.grad())) << name << " " << placements;
          EXPECT_TRUE(near(y.grad(), b.grad())) << name << " " << placements;
        });
      }
    }
  }
}

TEST(WrongAnswers, CovarianceWithARankThatHoldsNothing) {
  run_ranks(4, [](int) {
    const DeviceMesh mesh = init_device_mesh("tp=4");
    for (const char* placements : {"S0", "S1"}) {
      const at::Tensor full = test_numbers({3, 5}, 6);  // 3 rows and 5 columns over 4 ranks
      EXPECT_TRUE(near(at::cov(spread(full, mesh, placements)), at::cov(full))) << placements;
      EXPECT_TRUE(near(at::corrcoef(spread(full, mesh, placements)), at::corrcoef(full)));
      EXPECT_TRUE(near(spread(full, mesh, placements).var(), full.var())) << placements;
      EXPECT_TRUE(near(spread(full, mesh, placements).std(0), full.std(0))) << placements;
    }
  });
}

/// Shards that draw from equal generators repeat each other; from unequal ones, the result depends
/// on the number of ranks.
TEST(WrongAnswers, RandomNumbersDoNotKnowTheirShard) {
  at::Tensor alone;
  run_ranks(1, [&](int) {
    comm::manual_seed(5);
    const DeviceMesh mesh = init_device_mesh("all=1");
    alone = full_tensor(spread(test_numbers({6, 4}, 1), mesh, "R").normal_());
  });
  run_ranks(4, [&](int) {
    const DeviceMesh mesh = init_device_mesh("dp=2,tp=2");
    for (const char* placements : {"R,R", "S0,R", "S0,S1", "S0,S0", "S1,S0"}) {
      comm::manual_seed(5);
      EXPECT_TRUE(near(spread(test_numbers({6, 4}, 1), mesh, placements).normal_(), alone))
          << placements;
    }
    EXPECT_FALSE(at::equal(alone.narrow(0, 0, 3), alone.narrow(0, 3, 3)));
  });
}

TEST(WrongAnswers, ViewsOfUnevenShardsWithAnEmptyRank) {
  run_ranks(4, [](int) {
    const DeviceMesh mesh = init_device_mesh("tp=4");
    const at::Tensor full = test_numbers({5, 4, 3}, 7);  // 2, 2, 1 and no rows
    const at::Tensor x = spread(full, mesh, "S0");
    EXPECT_TRUE(near(x.view({5, 12}), full.view({5, 12})));
    EXPECT_TRUE(near(x.view({20, 3}), full.view({20, 3})));
    EXPECT_TRUE(near(x.view({60}), full.view({60})));
    EXPECT_TRUE(near(x.view({5, 2, 2, 3}), full.view({5, 2, 2, 3})));
    EXPECT_TRUE(near(x.view({4, 15}), full.view({4, 15})));
    EXPECT_TRUE(near(x.flatten().view({3, 20}), full.flatten().view({3, 20})));
    EXPECT_TRUE(near(x.view({20, 3}).sum(0), full.view({20, 3}).sum(0)));
    EXPECT_TRUE(near(x.transpose(0, 1).reshape({20, 3}), full.transpose(0, 1).reshape({20, 3})));
    x.view({5, 12}).mul_(2);
    EXPECT_TRUE(near(x, full * 2));
  });
}

TEST(WrongAnswers, UnevenShardsOfOneDimOverTwoAxes) {
  run_ranks(4, [](int) {
    const DeviceMesh mesh = init_device_mesh("dp=2,tp=2");
    const at::Tensor full = test_numbers({5, 3}, 8);
    std::vector<Sharding> layouts;
    for (const char* text : {"S0,S0 : 5x3", "S0#1,S0#0 : 5x3", "SS0(2),S0 : 5x3", "S0,SS0(2) : 5x3",
                             "SS0(3),SS0(2) : 5x3", "S0[4,1],S0[1,3,1,0] : 5x3"}) {
      layouts.push_back(
          Sharding::parse(join_text("dp=2,tp=2 : ", text)).with_mesh(mesh).with_dtype(DType::f64));
    }
    for (const auto& from : layouts) {
      const at::Tensor x = redistribute(spread(full, mesh, "R,R"), from);
      SCOPED_TRACE(from.to_text());
      EXPECT_TRUE(near(x, full));
      EXPECT_TRUE(near(x * 2 + 1, full * 2 + 1));
      EXPECT_TRUE(near(x.sum(0), full.sum(0)));
      EXPECT_TRUE(near(at::mm(x.t(), x), at::mm(full.t(), full)));
      EXPECT_TRUE(near(x.view({15}), full.view({15})));
      for (const auto& to : layouts) {
        EXPECT_TRUE(near(redistribute(x, to), full)) << to.to_text();
        EXPECT_TRUE(near(x + redistribute(x, to), full * 2)) << to.to_text();
      }
    }
  });
}

/// Axes that are one group in memory but shard a dim one inside the other.
TEST(WrongAnswers, GatheringOverAFlattenedMeshKeepsUnevenRowsInOrder) {
  run_ranks(4, [](int) {
    const DeviceMesh mesh = init_device_mesh("dp=2,tp=2");
    mesh.flatten({"dp", "tp"}, "all");
    const at::Tensor full = test_numbers({5, 3}, 9);
    EXPECT_TRUE(near(spread(full, mesh, "S0,S0"), full));
  });
}

/// libtorch writes the powers into a tensor that it creates, which was returned as it was: plain.
TEST(WrongAnswers, AVandermondeMatrixIsSharded) {
  run_ranks(2, [](int) {
    const DeviceMesh mesh = init_device_mesh("tp=2");
    for (const int64_t size : {0, 1, 5}) {
      const at::Tensor full = test_numbers({size}, 1);
      for (const std::optional<int64_t> columns : {std::optional<int64_t>(), {0}, {1}, {4}}) {
        for (const bool increasing : {false, true}) {
          const at::Tensor x = spread(full, mesh, "S0");
          const at::Tensor powers = at::vander(x, columns, increasing);
          EXPECT_TRUE(is_dtensor(powers));
          EXPECT_TRUE(near(powers, at::vander(full, columns, increasing)));
          const at::Tensor of_integers = at::vander(spread(full.to(at::kInt), mesh, "R"), columns);
          EXPECT_EQ(of_integers.scalar_type(), at::kLong);
        }
      }
    }
    EXPECT_THROW(at::vander(spread(test_numbers({2, 2}, 1), mesh, "R")), c10::Error);
  });
}

}  // namespace wrong_answers_test
}  // namespace tessera
