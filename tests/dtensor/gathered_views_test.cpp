// Views that need elements of other ranks: writes to them are refused, or reach the base where
// libtorch's own derivatives make them.
#include <ATen/Functions.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/custom_function.h>

#include "tessera/base/errors.h"
#include "tessera/comm/threads.h"
#include "tessera/comm/world.h"
#include "tessera/dtensor/dtensor.h"
#include "tests/support/training.h"

namespace tessera {
namespace {

using test::test_numbers;

at::Tensor columns(const at::Tensor& full, const DeviceMesh& mesh) {
  return distribute_tensor(full, mesh, {Shard(1)});
}

TEST(GatheredViews, RefuseWritesSoThatNoneIsLost) {
  comm::run_ranks(4, [](int) {
    const DeviceMesh mesh = comm::init_device_mesh("tp=4");
    const at::Tensor full = test_numbers({4, 6}, 1);
    const at::Tensor x = columns(full, mesh);
    const at::Tensor column = x.select(1, 2);
    EXPECT_TRUE(at::equal(full_tensor(column), full.select(1, 2)));
    EXPECT_THROW(column.add_(1), InvalidArgument);
    EXPECT_THROW(column.unsqueeze(0).add_(1), InvalidArgument) << "a view of it";
    EXPECT_THROW(column.slice(0, 0, 2).zero_(), InvalidArgument);
    for (const at::Tensor& part : x.unbind(1)) EXPECT_THROW(part.mul_(2), InvalidArgument);
    EXPECT_TRUE(at::equal(full_tensor(x), full));
    EXPECT_NO_THROW(column.clone().add_(1));
  });
}

/// A derivative that is written column by column, as libtorch writes some of its own.
struct ByColumns : torch::autograd::Function<ByColumns> {
  static at::Tensor forward(torch::autograd::AutogradContext*, const at::Tensor& x) {
    return x.clone();
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext*,
                                                 torch::autograd::variable_list grads) {
    at::Tensor out = at::zeros_like(grads[0]);
    for (int64_t i = 0; i < out.size(1); ++i) {
      out.select(1, i).copy_(grads[0].select(1, i));  // gathered
      out.select(1, i).unsqueeze(0).mul_(3);          // a view of one, read and written
    }
    const std::vector<at::Tensor> parts = out.unbind(1);
    parts[1].select(0, 2).add_(100);  // one of a list, and a number of it
    return {out};
  }
};

TEST(GatheredViews, OfDerivativesAreWrittenThrough) {
  const at::Tensor full = test_numbers({4, 6}, 1), grad = test_numbers({4, 6}, 2);
  at::Tensor expected = grad * 3;
  expected[2][1] += 100;
  comm::run_ranks(4, [&](int) {
    const DeviceMesh mesh = comm::init_device_mesh("tp=4");
    for (const Placement& placement : {Shard(1), Shard(0), Replicate()}) {
      at::Tensor x = distribute_tensor(full, mesh, {placement}).requires_grad_();
      ByColumns::apply(x).backward(distribute_tensor(grad, mesh, {placement}));
      EXPECT_TRUE(at::equal(full_tensor(x.grad()), expected)) << placement.to_text();
      x.mutable_grad().mul_(2);  // what autograd keeps is nobody's view
      EXPECT_TRUE(at::equal(full_tensor(x.grad()), expected * 2));
    }
  });
}

}  // namespace
}  // namespace tessera
