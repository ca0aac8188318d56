// Products of sharded sequences with matrices.
#include <ATen/Functions.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include <string>
#include <utility>
#include <vector>

#include "tessera/base/text.h"
#include "tessera/dtensor/dtensor.h"
#include "tessera/observe/expect.h"
#include "tessera/observe/recorder.h"
#include "tests/support/ranks.h"
#include "tests/support/training.h"

namespace tessera::test {
namespace matmul_kernel_test {

/// torch::nn::Linear in C++ multiplies by matmul.
TEST(Matmul, OfAShardedSequenceFoldsNothing) {
  for (const int ranks : {2, 3}) {
    test::run_ranks(ranks, [&](int) {
      const DeviceMesh mesh = comm::init_device_mesh("tp=" + std::to_string(ranks));
      const at::Tensor plain = test_numbers({2, 7, 6}, 1).requires_grad_();
      const at::Tensor plain_w = test_numbers({6, 4}, 2).requires_grad_();
      at::matmul(plain, plain_w).square().sum().backward();
      const at::Tensor x = distribute_tensor(plain.detach(), mesh, {Shard(1)}).requires_grad_();
      const at::Tensor w =
          distribute_tensor(plain_w.detach(), mesh, {Replicate()}).requires_grad_();
      comm::Recorder recorder(*comm::current_world());
      const at::Tensor y = at::matmul(x, w);
      EXPECT_EQ(placements(y)[0], Shard(1));
      y.square().sum().backward();
      EXPECT_EQ(comm::expect_comm(recorder, "nothing"), "") << recorder.to_text();
      EXPECT_TRUE(full_tensor(x.grad()).allclose(plain.grad()));
      EXPECT_TRUE(full_tensor(w.grad()).allclose(plain_w.grad()));
    });
  }
}

/// As torch::nn::Linear does: values, gradients and their strides are those of plain tensors.
TEST(Matmul, ByATransposedMatrixEqualsPlain) {
  const auto product = [](const at::Tensor& x, const at::Tensor& w, const at::Tensor& b) {
    at::Tensor y = x.matmul(w.t());
    y += b;
    y.pow(3).sum().backward();
    return y.detach();
  };
  test::run_ranks(2, [&](int) {
    const DeviceMesh mesh = comm::init_device_mesh("tp=2");
    const at::Tensor x = test_numbers({2, 5, 6}, 1).requires_grad_();
    const at::Tensor w = test_numbers({4, 6}, 2).requires_grad_();
    const at::Tensor b = test_numbers({4}, 3).requires_grad_();
    const at::Tensor y = product(x, w, b);
    const auto put = [&](const at::Tensor& plain, const Placement& placement) {
      return distribute_tensor(plain.detach(), mesh, {placement}).requires_grad_();
    };
    for (const Placement& of_x : {Replicate(), Shard(0), Shard(1), Shard(2)}) {
      for (const Placement& of_w : {Replicate(), Shard(0), Shard(1)}) {
        const at::Tensor sharded_x = put(x, of_x), sharded_w = put(w, of_w);
        const at::Tensor sharded_b = put(b, of_w == Shard(0) ? Shard(0) : Replicate());
        const at::Tensor got = product(sharded_x, sharded_w, sharded_b);
        const std::string what = join_text(of_x, " by ", of_w);
        EXPECT_TRUE(full_tensor(got).allclose(y)) << what;
        EXPECT_TRUE(full_tensor(sharded_x.grad()).allclose(x.grad())) << what;
        EXPECT_TRUE(full_tensor(sharded_w.grad()).allclose(w.grad())) << what;
        EXPECT_TRUE(full_tensor(sharded_b.grad()).allclose(b.grad())) << what;
        EXPECT_EQ(sharded_w.grad().strides(), w.grad().strides()) << what;
      }
    }
  });
}

TEST(Matmul, OfAShardedSequenceHasSecondDerivatives) {
  test::run_ranks(2, [](int) {
    const DeviceMesh mesh = comm::init_device_mesh("tp=2");
    const auto second = [](const at::Tensor& x, const at::Tensor& w) {
      const at::Tensor loss = at::matmul(x, w).pow(3).sum();
      const at::Tensor grad = torch::autograd::grad({loss}, {x}, {}, true, true)[0];
      return torch::autograd::grad({grad.square().sum()}, {w})[0];
    };
    const at::Tensor x = test_numbers({2, 5, 3}, 1), w = test_numbers({3, 4}, 2);
    const at::Tensor expected = second(x.clone().requires_grad_(), w.clone().requires_grad_());
    const at::Tensor got = second(distribute_tensor(x, mesh, {Shard(1)}).requires_grad_(),
                                  distribute_tensor(w, mesh, {Replicate()}).requires_grad_());
    EXPECT_TRUE(full_tensor(got).allclose(expected));
  });
}

/// Also where libtorch returns a view of the product: a matrix with sequences of size 1.
TEST(Matmul, ProductsAndOperandsCanBeWrittenTo) {
  test::run_ranks(2, [](int) {
    const DeviceMesh mesh = comm::init_device_mesh("tp=2");
    const auto gradient = [](const at::Tensor& x, const at::Tensor& w) {
      const at::Tensor left = x * 2;
      const at::Tensor fixed = w.detach();  // not saved: left may be written to
      const at::Tensor y = at::matmul(left, fixed);
      y.mul_(3);
      y.select(0, 0).mul_(5);
      left.mul_(7);
      (y.square().sum() + left.sum()).backward();
      return x.grad();
    };
    for (const auto& [left, right] :
         {std::pair<std::vector<int64_t>, std::vector<int64_t>>{{2, 4, 6}, {6, 4}},
          {{1, 6}, {3, 6, 4}},
          {{4, 6}, {1, 6, 1}},
          {{6}, {6, 4}}}) {
      const at::Tensor x = test_numbers(left, 1), w = test_numbers(right, 2);
      const at::Tensor expected = gradient(x.clone().requires_grad_(), w);
      for (int call = 0; call < 2; ++call) {
        const at::Tensor got = gradient(distribute_tensor(x, mesh, {Replicate()}).requires_grad_(),
                                        distribute_tensor(w, mesh, {Replicate()}));
        EXPECT_TRUE(full_tensor(got).allclose(expected)) << x.sizes() << w.sizes();
      }
    }
  });
}

}  // namespace matmul_kernel_test
}  // namespace tessera::test
