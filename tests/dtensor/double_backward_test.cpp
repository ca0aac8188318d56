// Second derivatives through the borders between plain and sharded tensors, against one rank.
#include <ATen/Functions.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include "tessera/dtensor/dtensor.h"
#include "tests/support/parts.h"
#include "tests/support/ranks.h"
#include "tests/support/training.h"

namespace tessera {
namespace double_backward_test {

using comm::init_device_mesh;
using test::run_ranks;
using test::test_numbers;
using torch::autograd::grad;

::testing::AssertionResult near(const at::Tensor& got, const at::Tensor& expected) {
  const at::Tensor full = is_dtensor(got) ? full_tensor(got) : got;
  if (full.sizes() == expected.sizes() && at::allclose(full, expected, 1e-10, 1e-10)) {
    return ::testing::AssertionSuccess();
  }
  return ::testing::AssertionFailure() << full << "\ninstead of\n" << expected;
}

/// First, second and third derivatives of sum(f(x)^3) by x, each contracted with itself.
std::vector<at::Tensor> derivatives(const at::Tensor& x,
                                    const std::function<at::Tensor(const at::Tensor&)>& f) {
  std::vector<at::Tensor> out;
  at::Tensor value = f(x).pow(3).sum();
  for (int order = 1; order <= 3; ++order) {
    const at::Tensor slope = grad({value}, {x}, {}, std::nullopt, /*create_graph=*/true)[0];
    out.push_back(slope.detach());
    value = slope.pow(2).sum();
  }
  return out;
}

TEST(HigherDerivatives, FlowThroughFromLocal) {
  const at::Tensor full = test_numbers({5, 3}, 1);
  const auto expected =
      derivatives(full.clone().requires_grad_(), [](const at::Tensor& x) { return at::sin(x); });
  run_ranks(4, [&](int) {
    const DeviceMesh mesh = init_device_mesh("dp=2,tp=2");
    const Sharding as(mesh, {Shard(0), Shard(1)}, {5, 3}, {.dtype = DType::f64});
    const Coordinate me = *mesh.my_coordinate();
    const at::Tensor mine = test::part_of(full, as, me).requires_grad_();
    // Each order goes out of the plain part, through the sharded value, and back.
    const auto f = [&](const at::Tensor& local) {
      return at::sin(from_local(local, mesh, {Shard(0), Shard(1)}));
    };
    at::Tensor value = f(mine).pow(3).sum();
    for (const at::Tensor& wanted : expected) {
      const at::Tensor slope = grad({value}, {mine}, {}, std::nullopt, true)[0];
      EXPECT_TRUE(near(slope.detach(), test::part_of(wanted, as, me)));
      value = from_local(slope, mesh, {Shard(0), Shard(1)}).pow(2).sum();
    }
  });
}

TEST(HigherDerivatives, FlowThroughRedistribute) {
  const at::Tensor full = test_numbers({5, 3}, 2);
  const auto expected = derivatives(full.clone().requires_grad_(), [](const at::Tensor& x) {
    return at::mm(at::sin(x), at::cos(x).t());
  });
  for (const char* from : {"S0,S0", "R,S1", "S1,R"}) {
    for (const char* to : {"R,R", "S1,S0", "S0,R"}) {
      run_ranks(4, [&](int) {
        const DeviceMesh mesh = init_device_mesh("dp=2,tp=2");
        const at::Tensor x = distribute_tensor(full, mesh, parse_placements(from)).requires_grad_();
        const auto got = derivatives(x, [&](const at::Tensor& in) {
          const at::Tensor moved = redistribute(at::sin(in), parse_placements(to));
          return at::mm(moved, at::cos(redistribute(in, parse_placements(to))).t());
        });
        for (size_t i = 0; i < got.size(); ++i) {
          EXPECT_TRUE(near(got[i], expected[i])) << from << " -> " << to << ", order " << i + 1;
        }
      });
    }
  }
}

TEST(HigherDerivatives, FlowThroughToLocal) {
  const at::Tensor full = test_numbers({6, 3}, 3);
  const auto expected =
      derivatives(full.clone().requires_grad_(), [](const at::Tensor& x) { return at::sin(x); });
  run_ranks(2, [&](int) {
    const DeviceMesh mesh = init_device_mesh("tp=2");
    const at::Tensor x = distribute_tensor(full, mesh, {Shard(0)}).requires_grad_();
    // Out to the plain part, which is worked on, and back in.
    const auto got = derivatives(x, [&](const at::Tensor& in) {
      return from_local(at::sin(to_local(in)), mesh, {Shard(0)});
    });
    for (size_t i = 0; i < got.size(); ++i) EXPECT_TRUE(near(got[i], expected[i])) << i + 1;
  });
}

/// A gradient penalty, as people train with: the loss holds the norm of the input's gradient.
TEST(HigherDerivatives, GradientPenaltyOfAnMlp) {
  struct Mlp {
    at::Tensor w1, b1, w2, b2;
    at::Tensor operator()(const at::Tensor& x) const {
      return at::linear(at::tanh(at::linear(x, w1, b1)), w2, b2);
    }
  };
  const std::vector<at::Tensor> plain = {test_numbers({6, 4}, 1), test_numbers({6}, 2),
                                         test_numbers({2, 6}, 3), test_numbers({2}, 4),
                                         test_numbers({5, 4}, 5)};
  const auto run = [](std::vector<at::Tensor> in) {
    for (auto& t : in) t.requires_grad_();
    const Mlp mlp{in[0], in[1], in[2], in[3]};
    const at::Tensor out = mlp(in[4]).pow(2).sum();
    const at::Tensor slope = grad({out}, {in[4]}, {}, std::nullopt, /*create_graph=*/true)[0];
    (out + 0.5 * (slope.pow(2).sum() - 1).pow(2)).backward();
    std::vector<at::Tensor> grads;
    for (const auto& t : in) grads.push_back(t.grad());
    return grads;
  };
  std::vector<at::Tensor> copies;
  for (const auto& t : plain) copies.push_back(t.clone());
  const auto expected = run(copies);
  const std::vector<std::vector<const char*>> layouts = {{"R,S0", "R,S0", "R,S1", "R,R", "S0,R"},
                                                         {"S0,S0", "S0,R", "S1,R", "R,S0", "S0,S1"},
                                                         {"R,R", "R,R", "R,R", "R,R", "S0,S0"}};
  for (const auto& layout : layouts) {
    run_ranks(4, [&](int) {
      const DeviceMesh mesh = init_device_mesh("dp=2,tp=2");
      std::vector<at::Tensor> in;
      for (size_t i = 0; i < plain.size(); ++i) {
        in.push_back(distribute_tensor(plain[i], mesh, parse_placements(layout[i])));
      }
      const auto got = run(in);
      for (size_t i = 0; i < got.size(); ++i) EXPECT_TRUE(near(got[i], expected[i])) << i;
    });
  }
}

/// The first derivative copies its operands into parts of a larger plain matrix.
TEST(HigherDerivatives, OfTheExponentialOfAMatrix) {
  const at::Tensor plain = test_numbers({4, 3, 3}, 1);
  const auto run = [](at::Tensor x) {
    x = x.detach().requires_grad_();
    const at::Tensor slope = grad({at::linalg_matrix_exp(x).pow(2).sum()}, {x}, {}, std::nullopt,
                                  /*create_graph=*/true)[0];
    return grad({slope.sin().sum()}, {x})[0];
  };
  const at::Tensor expected = run(plain);
  for (const char* placement : {"R", "S0", "S1", "P(sum)"}) {
    run_ranks(2, [&](int rank) {
      const DeviceMesh mesh = init_device_mesh("dp=2");
      const Placement p = parse_placements(placement)[0];
      const at::Tensor share = rank == 0 ? plain * 0.25 : plain * 0.75;
      const at::Tensor x =
          p.is_partial() ? from_local(share, mesh, {p}) : distribute_tensor(plain, mesh, {p});
      EXPECT_TRUE(near(run(x), expected)) << placement;
    });
  }
}

}  // namespace double_backward_test
}  // namespace tessera
