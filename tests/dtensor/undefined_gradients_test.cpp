// A function of the program that gives no gradient for an input: nothing arrives at what made that
// input, and leaves keep the gradients that they have from elsewhere.
#include <ATen/Functions.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/custom_function.h>

#include "tessera/comm/threads.h"
#include "tessera/comm/world.h"
#include "tessera/dtensor/dtensor.h"
#include "tests/support/ranks.h"
#include "tests/support/training.h"

namespace tessera {
namespace undefined_gradients_test {

using test::run_ranks;
using test::test_numbers;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

/// a + b, of which only `a` gets a gradient.
struct OnlyFirst : torch::autograd::Function<OnlyFirst> {
  static at::Tensor forward(AutogradContext* /*ctx*/, const at::Tensor& a, const at::Tensor& b) {
    return a + b;
  }
  static variable_list backward(AutogradContext* /*ctx*/, variable_list grads) {
    return {grads[0], at::Tensor()};
  }
};

/// Both of its results, one of which is not used.
struct Two : torch::autograd::Function<Two> {
  static variable_list forward(AutogradContext* ctx, const at::Tensor& x) {
    ctx->set_materialize_grads(false);
    return {x * 2, x * 3};
  }
  static variable_list backward(AutogradContext* /*ctx*/, variable_list grads) {
    return {grads[1].defined() ? grads[1] * 3 : at::Tensor()};
  }
};

TEST(UndefinedGradients, PassFromLocalAndRedistribute) {
  run_ranks(2, [](int rank) {
    const DeviceMesh mesh = comm::init_device_mesh("tp=2");
    const at::Tensor full = test_numbers({4, 6}, 1);
    at::Tensor a = distribute_tensor(full, mesh, {Shard(0)}).requires_grad_();
    at::Tensor local = test_numbers({2, 6}, 2 + static_cast<uint64_t>(rank)).requires_grad_();
    for (const Placement& placement : {Shard(0), Shard(1), Replicate()}) {
      const at::Tensor b = redistribute(from_local(local, mesh, std::vector<Placement>{Shard(0)}),
                                        mesh, std::vector<Placement>{placement});
      OnlyFirst::apply(a, b).sum().backward();
      EXPECT_FALSE(local.grad().defined()) << placement.to_text();
    }
    EXPECT_TRUE(at::equal(full_tensor(a.grad()), at::full({4, 6}, 3.0, at::kDouble)));
  });
}

TEST(UndefinedGradients, PassToLocalAndPlacedGradients) {
  run_ranks(2, [](int) {
    const DeviceMesh mesh = comm::init_device_mesh("tp=2");
    at::Tensor x = distribute_tensor(test_numbers({4, 6}, 1), mesh, {Shard(0)}).requires_grad_();
    at::Tensor other = at::ones({2, 6}, at::kDouble).requires_grad_();
    OnlyFirst::apply(other, to_local(x)).sum().backward();
    EXPECT_FALSE(x.grad().defined());
    EXPECT_TRUE(at::equal(other.grad(), at::ones({2, 6}, at::kDouble)));

    at::Tensor y = distribute_tensor(test_numbers({4, 6}, 2), mesh, {Shard(0)}).requires_grad_();
    OnlyFirst::apply(x, y.repeat({1, 1})).sum().backward();
    EXPECT_FALSE(y.grad().defined());
    EXPECT_TRUE(at::equal(full_tensor(x.grad()), at::ones({4, 6}, at::kDouble)));
  });
}

TEST(UndefinedGradients, OfResultsThatAreNotUsed) {
  run_ranks(2, [](int) {
    const DeviceMesh mesh = comm::init_device_mesh("tp=2");
    at::Tensor local = test_numbers({2, 6}, 1).requires_grad_();
    const auto results = Two::apply(from_local(local, mesh, std::vector<Placement>{Shard(0)}));
    results[0].sum().backward();
    EXPECT_FALSE(local.grad().defined());
  });
}

TEST(UndefinedGradients, OfSecondDerivatives) {
  run_ranks(2, [](int) {
    const DeviceMesh mesh = comm::init_device_mesh("tp=2");
    at::Tensor local = test_numbers({2, 6}, 1).requires_grad_();
    const at::Tensor x = from_local(local, mesh, std::vector<Placement>{Shard(0)});
    at::Tensor grad_of = at::ones_like(x).requires_grad_();
    const auto first = torch::autograd::grad({x * 2}, {local}, {grad_of}, true, true);
    first[0].sum().backward();  // of `grad_of` alone
    EXPECT_FALSE(local.grad().defined());
    EXPECT_TRUE(at::equal(full_tensor(grad_of.grad()), at::full({4, 6}, 2.0, at::kDouble)));
  });
}

}  // namespace undefined_gradients_test
}  // namespace tessera
