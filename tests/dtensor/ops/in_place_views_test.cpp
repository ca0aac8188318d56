// transpose_, unsqueeze_ and similar ops: a tensor that changes its shape in place.
#include <ATen/Functions.h>
#include <c10/core/InferenceMode.h>
#include <gtest/gtest.h>

#include "tessera/base/errors.h"
#include "tessera/dtensor/dtensor.h"
#include "tests/support/ranks.h"
#include "tests/support/spread.h"
#include "tests/support/training.h"

namespace tessera {
namespace in_place_views_test {

using comm::init_device_mesh;
using test::run_ranks;
using test::spread;
using test::test_numbers;

/// The gradient of x under `body`, which returns a loss.
template <class Body>
at::Tensor gradient(at::Tensor x, Body body) {
  x.requires_grad_();
  body(x).backward();
  return x.grad();
}

template <class Body>
void expect_same_gradient(Body body) {
  const at::Tensor full = test_numbers({4, 4, 4}, 1);
  const at::Tensor expected = gradient(full.clone(), body);
  for (const char* placements : {"R", "S0", "S1"}) {
    run_ranks(3, [&](int) {
      const at::Tensor got = gradient(spread(full, init_device_mesh("tp=3"), placements), body);
      EXPECT_TRUE(at::allclose(full_tensor(got), expected)) << placements;
    });
  }
}

TEST(InPlaceViews, KeepTheGradientInInferenceMode) {
  expect_same_gradient([](const at::Tensor& x) {
    const at::Tensor y = x * 1;
    {
      const c10::InferenceMode inference;
      y.unsqueeze_(0);
    }
    return y.sin().sum();
  });
}

/// Autograd takes the view again after each write: with the shape that it has by then.
TEST(InPlaceViews, OfAViewThatIsWrittenToAfterwards) {
  expect_same_gradient([](const at::Tensor& x) {
    const at::Tensor y = x * 1;
    const at::Tensor v = y.select(2, 1);
    v.transpose_(0, 1);
    v.mul_(v.detach().clone());
    y.mul_(2);
    return y.sin().sum() + (v * v.detach().clone()).sum();
  });
}

/// The derivative of the view would be taken from the transposed base: wrong where it is square.
TEST(InPlaceViews, OfABaseWithViewsAreRefused) {
  run_ranks(2, [](int) {
    const at::Tensor x =
        spread(test_numbers({4, 4}, 1), init_device_mesh("tp=2"), "S0").requires_grad_();
    const at::Tensor y = x.sin();
    {
      const at::Tensor v = y.narrow(1, 0, 2);
      EXPECT_THROW(y.transpose_(0, 1), NotSupported);
    }
    y.transpose_(0, 1);  // the view is gone
    EXPECT_EQ(y.size(0), 4);
  });
}

/// Without a gradient nothing is taken from the base again; a later write that records one is an
/// error.
TEST(InPlaceViews, OfABaseWithViewsAreRefusedWhereALaterWriteRecordsAGradient) {
  run_ranks(2, [](int) {
    const DeviceMesh mesh = init_device_mesh("tp=2");
    const at::Tensor full = test_numbers({4, 4}, 1);
    for (const char* placements : {"R", "S0"}) {
      const at::Tensor w = spread(test_numbers({4, 4}, 2), mesh, placements).requires_grad_();
      const at::Tensor y = spread(full, mesh, placements) * 1;
      const at::Tensor expected = full.t() * 3;
      {
        const at::Tensor v = y.narrow(1, 0, 2);
        y.transpose_(0, 1);
        y.mul_(3);  // records nothing
        EXPECT_THROW(y.mul_(w), NotSupported) << placements;
        EXPECT_THROW(v.mul_(w.narrow(1, 0, 2)), NotSupported) << placements;
        EXPECT_THROW(at::_foreach_mul_({y, v}, {w, w.narrow(1, 0, 2)}), NotSupported) << placements;
        EXPECT_TRUE(at::equal(full_tensor(v), expected.t().narrow(1, 0, 2))) << placements;
        const at::NoGradGuard no_grad;
        y.mul_(w).div_(w);
      }
      EXPECT_TRUE(at::allclose(full_tensor(y), expected)) << placements;
      y.mul_(w);  // the view is gone
      y.sum().backward();
      EXPECT_TRUE(at::allclose(full_tensor(w.grad()), expected)) << placements;
    }
  });
}

}  // namespace in_place_views_test
}  // namespace tessera
