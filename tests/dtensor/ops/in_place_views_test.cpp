// transpose_, unsqueeze_ and similar ops: a tensor that changes its shape in place.
#include <ATen/Functions.h>
#include <c10/core/InferenceMode.h>
#include <c10/core/UndefinedTensorImpl.h>
#include <gtest/gtest.h>

#include <functional>
#include <vector>

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

/// The dims are of one size, so that a view taken from the new shape would be silently wrong.
TEST(InPlaceViews, OfABaseWithViewsKeepTheirDerivatives) {
  expect_same_gradient([](const at::Tensor& x) {
    const at::Tensor y = x.sin();
    const at::Tensor v = y.narrow(1, 0, 2);
    const at::Tensor of_v = v.select(0, 1);
    y.transpose_(0, 1);
    const at::Tensor later = y.narrow(1, 0, 2);
    y.unsqueeze_(1);
    return v.square().sum() + (of_v * of_v.detach().exp()).sum() + later.pow(3).sum() +
           y.exp().select(0, 2).sum();
  });
}

TEST(InPlaceViews, OfABaseWithViewsAreUndoneForTheViewsByEachOp) {
  using Op = std::function<void(const at::Tensor&)>;
  const std::vector<Op> ops = {
      [](const at::Tensor& y) { y.unsqueeze_(-1).transpose_(0, 1).squeeze_(-1); },
      [](const at::Tensor& y) { y.unsqueeze_(0).unsqueeze_(2).squeeze_(); },
      [](const at::Tensor& y) { y.unsqueeze_(1).squeeze_(-3).transpose_(-1, -2); },
      [](const at::Tensor& y) {
        y.unsqueeze_(0).unsqueeze_(-1).squeeze_(at::IntArrayRef({-1, 0}));
      },
  };
  for (const Op& op : ops) {
    expect_same_gradient([&](const at::Tensor& x) {
      const at::Tensor y = x * 1;
      const at::Tensor v = y.narrow(2, 0, 1).squeeze(2);
      const at::Tensor diagonal = y.diagonal(0, 0, 1);
      op(y);
      v.mul_(x.select(2, 3));  // reaches y
      y.mul_(y.detach().clone());
      return y.sin().sum() + (v * v.detach().clone()).sum() + diagonal.square().sum();
    });
  }
  expect_same_gradient([](const at::Tensor& x) {
    const at::Tensor y = x.select(0, 1) * 1;
    const at::Tensor v = y.narrow(0, 1, 2);
    y.t_();
    v.mul_(2);
    return (y * y.detach().clone()).sum() + v.exp().sum();
  });
}

/// At the time of the change nothing requires grad.
TEST(InPlaceViews, OfABaseWithViewsKeepTheDerivativesOfLaterWrites) {
  const at::Tensor full = test_numbers({4, 4}, 1);
  const auto body = [](const at::Tensor& y, const at::Tensor& w) {
    const at::Tensor v = y.narrow(1, 0, 2);
    y.transpose_(0, 1);
    y.mul_(3);
    y.mul_(w);
    EXPECT_NE(v.grad_fn(), nullptr);  // libtorch makes it when asked, and takes v for a leaf before
    v.mul_(w.narrow(1, 0, 2));
    at::_foreach_mul_({y}, at::TensorList({w}));
    EXPECT_NE(v.grad_fn(), nullptr);
    at::_foreach_mul_({v}, at::TensorList({w.narrow(1, 0, 2)}));
    ((y * y.detach()).sum() + v.exp().sum()).backward();
  };
  const at::Tensor plain = full * 1;
  const at::Tensor plain_w = test_numbers({4, 4}, 2).requires_grad_();
  body(plain, plain_w);
  for (const char* placements : {"R", "S0", "S1"}) {
    run_ranks(2, [&](int) {
      const DeviceMesh mesh = init_device_mesh("tp=2");
      const at::Tensor w = spread(plain_w.detach(), mesh, placements).requires_grad_();
      const at::Tensor y = spread(full, mesh, placements) * 1;
      body(y, w);
      EXPECT_TRUE(at::allclose(full_tensor(y.detach()), plain.detach())) << placements;
      EXPECT_TRUE(at::allclose(full_tensor(w.grad()), plain_w.grad())) << placements;
    });
  }
}

/// Parameters live long and have a view in each step: their list must not grow with the steps.
TEST(InPlaceViews, OfABaseFindOnlyTheViewsThatLive) {
  run_ranks(2, [](int) {
    const at::Tensor x =
        spread(test_numbers({4, 4}, 1), init_device_mesh("tp=2"), "S0").requires_grad_();
    const at::Tensor y = x * 1;
    const at::Tensor kept = y.narrow(0, 0, 2);
    c10::weak_intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl> first(
        y.narrow(0, 0, 1).getIntrusivePtr());
    for (int i = 0; i < 1000; ++i) y.narrow(0, 0, 1);
    EXPECT_EQ(first.weak_use_count(), 1u);  // the list has forgotten it
    y.transpose_(0, 1);
    (kept * kept.detach()).sum().backward();
    EXPECT_TRUE(at::allclose(full_tensor(x.grad()).narrow(0, 0, 2),
                             test_numbers({4, 4}, 1).narrow(0, 0, 2)));
    EXPECT_TRUE(at::all(full_tensor(x.grad()).narrow(0, 2, 2) == 0).item<bool>());
  });
}

}  // namespace in_place_views_test
}  // namespace tessera
