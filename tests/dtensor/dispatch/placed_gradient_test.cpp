// Derivative formulas that make plain tensors: what reaches a sharded leaf is sharded as it is.
#include <ATen/Functions.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/optim/sgd.h>

#include <functional>

#include "tessera/dtensor/dtensor.h"
#include "tests/support/ranks.h"
#include "tests/support/training.h"

namespace tessera {
namespace placed_gradient_test {

using comm::init_device_mesh;
using test::run_ranks;
using test::test_numbers;

using Loss = std::function<at::Tensor(const std::vector<at::Tensor>&)>;

/// Something whose gradient by every input is asked for.
at::Tensor slopes(const Loss& value, const std::vector<at::Tensor>& inputs) {
  at::Tensor sum;
  for (const auto& slope : torch::autograd::grad({value(inputs)}, inputs, {}, std::nullopt,
                                                 /*create_graph=*/true)) {
    const at::Tensor squares = slope.pow(2).sum();
    sum = sum.defined() ? sum + squares : squares;
  }
  return sum;
}

struct Case {
  const char* name;
  std::vector<std::vector<int64_t>> shapes;
  Loss loss;
};

std::vector<Case> cases() {
  using Inputs = std::vector<at::Tensor>;
  return {
      {"copysign",
       {{4, 3}, {4, 3}},
       [](const Inputs& x) { return at::copysign(x[0], x[1]).sum(); }},
      {"copysign, broadcast",
       {{4, 3}, {3}},
       [](const Inputs& x) { return at::copysign(x[0], x[1]).pow(2).sum(); }},
      {"copysign_",
       {{4, 3}, {4, 3}},
       [](const Inputs& x) { return (x[0] + 1).copysign_(x[1]).pow(2).sum(); }},
      {"sgn_", {{4, 3}}, [](const Inputs& x) { return ((x[0] + 1).sgn_() * x[0]).sum(); }},
      {"sgn", {{4, 3}}, [](const Inputs& x) { return (at::sgn(x[0]) * x[0]).sum(); }},
      {"matrix_exp", {{4, 4}}, [](const Inputs& x) { return at::matrix_exp(x[0]).pow(2).sum(); }},
      {"matrix_exp of a batch",
       {{4, 3, 3}},
       [](const Inputs& x) { return at::matrix_exp(x[0]).sum(); }},
      {"nothing by strides",
       {{4, 3}},
       [](const Inputs& x) {
         return x[0].as_strided({2, 0}, {3, 1}).sum() + x[0].sum();
       }},
      {"a copy of nothing by strides",
       {{4, 3}},
       [](const Inputs& x) { return at::as_strided_copy(x[0], {0}, {1}).sum(); }},
      {"repeat nothing",
       {{4, 3}},
       [](const Inputs& x) {
         return x[0].repeat({1, 0}).sum();
       }},
      {"cat of a tensor that it passes over",
       {{4, 3}, {0}},
       [](const Inputs& x) {
         return at::cat({x[0], x[1], x[0]}, 1).pow(2).sum();
       }},
      {"max_pool2d twice",
       {{4, 2, 4, 4}},
       [](const Inputs& in) {
         return slopes([](const Inputs& x) { return at::max_pool2d(x[0], 2).pow(3).sum(); }, in);
       }},
      {"avg_pool2d twice",
       {{4, 2, 4, 4}},
       [](const Inputs& in) {
         return slopes([](const Inputs& x) { return at::avg_pool2d(x[0], 2).pow(3).sum(); }, in);
       }},
      {"reflection_pad1d twice",
       {{4, 2, 5}},
       [](const Inputs& in) {
         return slopes(
             [](const Inputs& x) {
               return at::reflection_pad1d(x[0], {2, 1}).pow(3).sum();
             },
             in);
       }},
  };
}

TEST(PlacedGradients, ReachShardedLeavesAndTheirOptimizer) {
  for (const Case& c : cases()) {
    std::vector<at::Tensor> plain;
    for (size_t i = 0; i < c.shapes.size(); ++i) {
      plain.push_back(test_numbers(c.shapes[i], i + 1).requires_grad_());
    }
    c.loss(plain).backward();
    run_ranks(2, [&](int) {
      SCOPED_TRACE(c.name);
      const DeviceMesh mesh = init_device_mesh("tp=2");
      std::vector<at::Tensor> leaves;
      for (const at::Tensor& full : plain) {
        leaves.push_back(distribute_tensor(full.detach(), mesh, {Shard(0)}).requires_grad_());
      }
      c.loss(leaves).backward();
      for (size_t i = 0; i < leaves.size(); ++i) {
        ASSERT_TRUE(is_dtensor(leaves[i].grad()));
        EXPECT_TRUE(at::allclose(full_tensor(leaves[i].grad()), plain[i].grad(), 1e-10, 1e-10));
      }
      torch::optim::SGD(leaves, /*lr=*/0.5).step();
      const at::Tensor expected = plain[0].detach() - 0.5 * plain[0].grad();
      EXPECT_TRUE(at::allclose(full_tensor(leaves[0].detach()), expected, 1e-10, 1e-10));
    });
  }
}

}  // namespace placed_gradient_test
}  // namespace tessera
