// Ranks outside the mesh run the same program with empty parts: every op has a result of the same
// shape and dtype, and what is refused on the mesh's ranks is refused there.
#include <ATen/Functions.h>
#include <gtest/gtest.h>

#include <functional>
#include <string_view>

#include "tessera/base/errors.h"
#include "tessera/comm/threads.h"
#include "tessera/dtensor/dtensor.h"
#include "tessera/observe/expect.h"
#include "tessera/observe/recorder.h"
#include "tests/support/ranks.h"
#include "tests/support/spread.h"
#include "tests/support/training.h"

namespace tessera {
namespace ranks_outside_test {

using comm::init_device_mesh;
using test::run_ranks;
using test::spread;
using test::test_numbers;

/// Calls check(mesh, whether this rank is outside it); nothing is sent outside.
void run(const std::function<void(const DeviceMesh&, bool)>& check) {
  run_ranks(4, [&](int rank) {
    const DeviceMesh mesh = init_device_mesh("tp=2@0,1");
    comm::Recorder recorder(*comm::current_world());
    check(mesh, rank >= 2);
    if (rank >= 2) {
      EXPECT_EQ(comm::expect_comm(recorder, "nothing"), "");
    }
  });
}

void expect_like(const at::Tensor& sharded, const at::Tensor& plain, bool outside) {
  EXPECT_EQ(sharded.sizes(), plain.sizes());
  EXPECT_EQ(sharded.strides(), plain.strides());
  EXPECT_EQ(sharded.scalar_type(), plain.scalar_type());
  const at::Tensor all = full_tensor(sharded.detach());
  EXPECT_TRUE(outside || at::allclose(all, plain));
}

TEST(RanksOutside, TakeViewsByStrides) {
  run([](const DeviceMesh& mesh, bool outside) {
    const at::Tensor full = test_numbers({4, 4}, 1);
    const at::Tensor half = full / 2;
    for (const at::Tensor& x : {spread(full, mesh, "R"), spread(full, mesh, "S0"),
                                from_local(half, mesh, {Partial()}, {.shape = {{4, 4}}})}) {
      expect_like(x.as_strided({4, 4}, {1, 4}), full.as_strided({4, 4}, {1, 4}), outside);
      expect_like(x.as_strided({}, {}, 0), full.as_strided({}, {}, 0), outside);
    }
  });
}

TEST(RanksOutside, FollowDerivativesThatReadValues) {
  run([](const DeviceMesh& mesh, bool outside) {
    const at::Tensor full = test_numbers({4, 4}, 1).requires_grad_();
    const at::Tensor x = spread(full.detach(), mesh, "S0").requires_grad_();
    (full.prod() + full.prod(1).sum() + full.cumprod(0).sum()).backward();
    (x.prod() + x.prod(1).sum() + x.cumprod(0).sum()).backward();
    expect_like(x.grad(), full.grad(), outside);
    if (outside) {
      EXPECT_THROW(x.sum().item<double>(), InvalidArgument);
    }
  });
}

TEST(RanksOutside, HaveTheDtypesOfTensorsWithoutElements) {
  run([](const DeviceMesh& mesh, bool outside) {
    const at::Tensor full = at::empty({0, 3}, at::kBool);
    const at::Tensor x = spread(full, mesh, "R");
    expect_like(x.logical_xor(x).to(at::kDouble), full.to(at::kDouble), outside);
    expect_like(x.to(at::kDouble) >= 1.0, full, outside);
  });
}

TEST(RanksOutside, RunOpsWithoutARule) {
  run([](const DeviceMesh& mesh, bool outside) {
    const at::Tensor full = test_numbers({4, 4}, 1) + 4 * at::eye(4, at::kDouble);
    expect_like(at::linalg_inv(spread(full, mesh, "S0")), at::linalg_inv(full), outside);
  });
}

/// An op that reduces a Partial tensor keeps the copy for the next one, which computes with it.
TEST(RanksOutside, HaveThePlacementsOfTheOthers) {
  run([](const DeviceMesh& mesh, bool) {
    const at::Tensor partial = spread(test_numbers({4, 6}, 1), mesh, "S0").sum(0);
    EXPECT_TRUE(sharding(partial).has_partial());
    EXPECT_TRUE(sharding(at::sin(partial)).is_replicated());
    EXPECT_TRUE(sharding(partial * 2 + 1).is_replicated());
    EXPECT_TRUE(sharding(partial * partial).is_replicated());
  });
}

TEST(RanksOutside, WriteToViews) {
  run([](const DeviceMesh& mesh, bool outside) {
    at::Tensor full = test_numbers({4, 6}, 1);
    const at::Tensor x = spread(full, mesh, "S0");
    x.select(0, 1).mul_(3);
    x.t().add_(1);
    full.select(0, 1).mul_(3);
    expect_like(x, full.add_(1), outside);
  });
}

void expect_error(const std::function<void()>& attempt, std::string_view says) {
  try {
    attempt();
    ADD_FAILURE() << "no error, expected: " << says;
  } catch (const std::exception& error) {
    EXPECT_NE(std::string_view(error.what()).find(says), std::string_view::npos) << error.what();
  }
}

TEST(RanksOutside, WriteToConjugates) {
  run([](const DeviceMesh& mesh, bool outside) {
    const at::Tensor full = at::complex(test_numbers({4, 4}, 1), test_numbers({4, 4}, 2));
    const at::Tensor x = spread(full, mesh, "S0");
    const at::Tensor conjugate = x.conj();
    conjugate.mul_(2);
    x.add_(1);
    expect_like(conjugate, full.mul(2).add_(1).conj().resolve_conj(), outside);
  });
}

TEST(RanksOutside, TakeViewsAgainOfABaseThatChangedItsShape) {
  const at::Tensor full = test_numbers({4, 4}, 1);
  const auto gradient = [](at::Tensor leaf) {
    leaf.requires_grad_();
    const at::Tensor base = leaf * 1;
    const at::Tensor view = base.narrow(0, 0, 1);
    base.transpose_(0, 1);
    view.mul_(view.detach().clone());
    (base * base.detach().clone()).sum().backward();
    return leaf.grad();
  };
  const at::Tensor expected = gradient(full.clone());
  run([&](const DeviceMesh& mesh, bool outside) {
    expect_like(gradient(spread(full, mesh, "S0")), expected, outside);
  });
}

}  // namespace ranks_outside_test
}  // namespace tessera
