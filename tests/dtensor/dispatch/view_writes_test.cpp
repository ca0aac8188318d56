// In-place writes to views of sharded tensors: autograd finds the view again by what was called, on
// every thread, never by strides.
#include <ATen/Functions.h>
#include <gtest/gtest.h>

#include <functional>
#include <thread>

#include "tessera/base/errors.h"
#include "tessera/comm/world.h"
#include "tessera/dtensor/dtensor.h"
#include "tessera/module/distribute_module.h"
#include "tests/support/processes.h"
#include "tests/support/ranks.h"
#include "tests/support/training.h"

namespace tessera {
namespace view_writes_test {

using test::test_numbers;

struct ViewWrite {
  const char* what;
  void (*write)(const at::Tensor& z, const at::Tensor& factor);
};

/// `factor` is one number, which gets a gradient too.
const ViewWrite kWrites[] = {
    {"select", [](const at::Tensor& z, const at::Tensor& f) { z.select(1, 1).mul_(f); }},
    {"slice", [](const at::Tensor& z, const at::Tensor& f) { z.slice(1, 1, 4, 2).mul_(f); }},
    {"two writes",
     [](const at::Tensor& z, const at::Tensor& f) {
       z.select(1, 1).mul_(f);
       z.select(1, 2).pow_(2);
     }},
    {"view of a view",
     [](const at::Tensor& z, const at::Tensor& f) { z.t().narrow(0, 1, 2).t().mul_(f); }},
    {"view, its base, the view again",
     [](const at::Tensor& z, const at::Tensor& f) {
       const at::Tensor v = z.select(1, 3);
       v.mul_(f);
       z.mul_(2);
       v.add_(z.select(1, 0));
     }},
    {"unsqueeze",
     [](const at::Tensor& z, const at::Tensor& f) { z.unsqueeze(0).slice(2, 2).mul_(f); }},
    {"row", [](const at::Tensor& z, const at::Tensor& f) { z.select(0, 2).mul_(f); }},
    {"diagonal", [](const at::Tensor& z, const at::Tensor& f) { z.diagonal().mul_(f); }},
};

struct Gradients {
  at::Tensor value, of_x, of_factor;
};

Gradients gradients(const ViewWrite& write, at::Tensor x, at::Tensor factor,
                    const at::Tensor& weight) {
  x.requires_grad_();
  factor.requires_grad_();
  const at::Tensor z = x * 1;
  write.write(z, factor);
  (z * weight).sum().backward();
  return {z.detach(), x.grad(), factor.grad()};
}

void check_all(const DeviceMesh& mesh, const Placement& placement) {
  const std::vector<Placement> placements = {placement};
  const at::Tensor full = test_numbers({5, 6}, 1), weight = test_numbers({5, 6}, 2);
  for (const auto& write : kWrites) {
    const at::Tensor factor = at::full({}, 3.0, at::kDouble);
    const auto expected = gradients(write, full.clone(), factor.clone(), weight);
    const auto got = gradients(write, distribute_tensor(full, mesh, placements),
                               distribute_tensor(factor, mesh, {Replicate()}),
                               distribute_tensor(weight, mesh, placements));
    const std::string name = join_text(write.what, " of ", placements_text(placements));
    EXPECT_TRUE(at::equal(full_tensor(got.value), expected.value)) << name;
    EXPECT_TRUE(at::allclose(full_tensor(got.of_x), expected.of_x)) << name;
    EXPECT_TRUE(at::allclose(full_tensor(got.of_factor), expected.of_factor)) << name;
  }
}

TEST(ViewWrites, HaveTheGradientsOfThePlainTensor) {
  test::run_ranks(2, [](int) {
    const DeviceMesh mesh = comm::init_device_mesh("tp=2");
    for (const Placement& placement : {Replicate(), Shard(0)}) check_all(mesh, placement);
  });
}

/// What a thread starts with is not what a rank's thread has.
TEST(ViewWrites, HaveTheGradientsOfThePlainTensorInThreadsOfTheUser) {
  const auto in_thread = [](const std::function<void()>& body) {
    std::exception_ptr error;
    std::thread([&] {
      try {
        body();
      } catch (...) {
        error = std::current_exception();
      }
    }).join();
    if (error) std::rethrow_exception(error);
  };
  test::run_ranks(2,
                  [&](int) {
                    const DeviceMesh mesh = comm::init_device_mesh("tp=2");
                    for (const Placement& placement : {Replicate(), Shard(0)}) {
                      in_thread([&] { check_all(mesh, placement); });
                    }
                  },
                  {.detect_deadlock = false});
}

TEST(ViewWrites, AreRefusedWhereTheViewIsOlderThanTheSharding) {
  test::run_ranks(2, [](int) {
    const DeviceMesh mesh = comm::init_device_mesh("tp=2");
    const at::Tensor base = test_numbers({4, 6}, 1);
    const at::Tensor view = base.select(1, 1);  // by strides
    distribute_(base, mesh, {Replicate()});
    at::Tensor factor = at::full({6}, 3.0, at::kDouble).requires_grad_();
    view.mul_(factor.select(0, 1));
    const std::string error = testing::error_of([&] { base.sum().backward(); });
    EXPECT_NE(error.find("taken before its base became sharded"), std::string::npos) << error;
  });
}

/// Views of plain tensors are recorded by strides, so that the shape of their base may change. A
/// view of a sharded tensor that was taken before on the same thread must not alter that.
TEST(ViewWrites, OfPlainTensorsHaveTheDerivativeThatTheyHaveWithoutShardedOnes) {
  const auto gradient = [] {
    const at::Tensor leaf = test_numbers({4, 6}, 1).requires_grad_();
    const at::Tensor base = leaf * 1;
    const at::Tensor row = base.select(0, 1);
    base.transpose_(0, 1);
    base.mul_(3);
    (row * row).sum().backward();
    return leaf.grad();
  };
  const at::Tensor expected = gradient();
  test::run_ranks(2, [&](int) {
    const DeviceMesh mesh = comm::init_device_mesh("tp=2");
    const at::Tensor sharded = distribute_tensor(test_numbers({4, 6}, 2), mesh, {Shard(0)});
    const at::Tensor with_grad = sharded.clone().requires_grad_();
    for (const at::Tensor& each : {sharded, with_grad}) {
      for (const at::Tensor& view :
           {each.t(), each.view({24}), each.select(0, 3), each.unfold(1, 2, 2),
            each.as_strided({24}, {1}), each.split_with_sizes({2, 2})[0]}) {
        EXPECT_TRUE(view.defined());
        EXPECT_FALSE(c10::AutogradState::get_tls_state().get_view_replay_enabled());
        EXPECT_TRUE(at::equal(gradient(), expected));
      }
    }
  });
}

/// libtorch never replays a view that was taken without grad mode, so it need not be recorded.
TEST(ViewWrites, ToViewsTakenWithoutGradModeAreRefusedAsForThePlainTensor) {
  const auto error = [](const at::Tensor& base, const at::Tensor& factor, bool writes_base) {
    at::Tensor view;
    {
      const at::NoGradGuard no_grad;
      view = base.t();
    }
    at::Tensor part = view.narrow(0, 0, 2);
    return testing::error_of([&] {
      (writes_base ? base : view).mul_(factor);
      part.sum().backward();
    });
  };
  for (const bool writes_base : {false, true}) {
    const at::Tensor number = at::full({}, 3.0, at::kDouble).requires_grad_();
    const std::string plain = error(test_numbers({4, 6}, 1), number, writes_base);
    EXPECT_NE(plain.find("created in no_grad mode"), std::string::npos) << plain;
    test::run_ranks(2, [&](int) {
      const DeviceMesh mesh = comm::init_device_mesh("tp=2");
      const at::Tensor base = distribute_tensor(test_numbers({4, 6}, 1), mesh, {Shard(0)});
      const at::Tensor factor =
          distribute_tensor(number.detach(), mesh, {Replicate()}).requires_grad_();
      const std::string sharded = error(base, factor, writes_base);
      EXPECT_NE(sharded.find("created in no_grad mode"), std::string::npos) << sharded;
    });
  }
}

}  // namespace view_writes_test
}  // namespace tessera
