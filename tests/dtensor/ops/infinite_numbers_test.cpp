// Numbers of a call that are infinite or NaN. Ranks that have no part in a row, or in the sum of
// which a tensor is a part, add zeros: these are not multiplied by such a number.
#include <ATen/Functions.h>
#include <gtest/gtest.h>

#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "tessera/comm/threads.h"
#include "tessera/dtensor/dtensor.h"
#include "tests/support/ranks.h"

namespace tessera {
namespace infinite_numbers_test {

using comm::init_device_mesh;
using test::run_ranks;

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();

bool is_same(const at::Tensor& a, const at::Tensor& b) {
  return at::allclose(a, b, 0, 0, /*equal_nan=*/true);
}

at::Tensor numbers() { return at::tensor({3., 1., -2., 4., 5., -6.}, at::kDouble).view({3, 2}); }

TEST(InfiniteNumbers, AreAddedToTheRowsOfTheIndexAlone) {
  run_ranks(2, [](int) {
    const DeviceMesh mesh = init_device_mesh("tp=2");
    const at::Tensor index = at::tensor({1, 2}), source = at::ones({2, 2}, at::kDouble);
    const at::Tensor all_index = distribute_tensor(index, mesh, {Replicate()});
    for (const Placement& placement : {Shard(0), Shard(1), Replicate()}) {
      for (const Placement& of_source : {Replicate(), Placement(Shard(1))}) {
        for (const double alpha : {kInfinity, -kInfinity, kNaN, 2.0}) {
          const at::Tensor x = distribute_tensor(numbers(), mesh, {placement});
          const at::Tensor s = distribute_tensor(source, mesh, {of_source});
          const at::Tensor expected = numbers().index_add(0, index, source, alpha);
          const std::string what = placement.to_text() + " " + std::to_string(alpha);
          EXPECT_TRUE(is_same(full_tensor(x.index_add(0, all_index, s, alpha)), expected)) << what;
          x.index_add_(0, all_index, s, alpha);
          EXPECT_TRUE(is_same(full_tensor(x), expected)) << what;
        }
      }
    }
  });
}

/// A replicated addend of a sum is added on one rank; the others add zeros.
TEST(InfiniteNumbers, AreNotMultipliedWithTheZerosOfASum) {
  run_ranks(2, [](int rank) {
    const DeviceMesh mesh = init_device_mesh("tp=2");
    const auto sharded = [&](const at::Tensor& full, const Placement& placement) {
      return distribute_tensor(full, mesh, {placement});
    };
    const at::Tensor full = numbers(),
                     square = at::tensor({1., 2., 3., 4.}, at::kDouble).view({2, 2});
    const auto parts = [&](const at::Tensor& whole) {
      return from_local(rank == 0 ? whole + 5 : at::full_like(whole, -5.), mesh, {Partial()});
    };
    const at::Tensor all = sharded(full, Replicate()), index = at::tensor({1});
    const at::Tensor all_index = sharded(index, Replicate());
    const auto expect = [](const char* what, const at::Tensor& y, const at::Tensor& expected) {
      EXPECT_TRUE(is_same(full_tensor(y), expected)) << what << "\n" << full_tensor(y) << expected;
    };
    for (const double number : {2.0, kInfinity, -kInfinity, kNaN, 2.0}) {
      expect("add", at::add(parts(full), all, number), at::add(full, full, number));
      expect("sub", at::sub(parts(full), all, number), at::sub(full, full, number));
      at::Tensor written = parts(full);
      written.add_(all, number);
      expect("add_", written, at::add(full, full, number));
      expect("addcmul", at::addcmul(parts(full), all, all, number),
             at::addcmul(full, full, full, number));
      expect("addmm", at::addmm(all, sharded(full, Shard(1)), sharded(square, Shard(0)), number, 1),
             at::addmm(full, full, square, number, 1));
      expect("addmm of parts", at::addmm(parts(full), all, sharded(square, Replicate()), 1, number),
             at::addmm(full, full, square, 1, number));
      expect("baddbmm",
             at::baddbmm(all.unsqueeze(0), sharded(full.unsqueeze(0), Shard(2)),
                         sharded(square.unsqueeze(0), Shard(1)), number, 1),
             at::baddbmm(full.unsqueeze(0), full.unsqueeze(0), square.unsqueeze(0), number, 1));
      expect("index_add", parts(full).index_add(0, all_index, all.narrow(0, 0, 1), number),
             full.index_add(0, index, full.narrow(0, 0, 1), number));
      expect("_foreach_add",
             at::_foreach_add(std::vector{parts(full)}, std::vector{all}, at::Scalar(number))[0],
             at::add(full, full, number));
    }
  });
}

}  // namespace infinite_numbers_test
}  // namespace tessera
