#include "tessera/dtensor/local_map.h"

#include <gtest/gtest.h>

#include "tessera/base/errors.h"
#include "tessera/comm/threads.h"
#include "tessera/dtensor/dtensor.h"
#include "tests/support/parts.h"
#include "tests/support/ranks.h"

namespace tessera {
namespace local_map_test {

using comm::init_device_mesh;
using test::run_ranks;
using test::whole_numbers;

TEST(LocalMap, RunsOnPartsAndPutsTheResultTogether) {
  run_ranks(2, [](int) {
    const DeviceMesh mesh = init_device_mesh("tp=2");
    for (int64_t rows : {4, 5, 1}) {  // even, uneven, nothing on the second rank
      const at::Tensor a = whole_numbers({rows, 3}, 1);
      const at::Tensor b = whole_numbers({3, 2}, 2);
      const auto product = local_map(
          [](const at::Tensor& x, const at::Tensor& y) {
            EXPECT_FALSE(is_dtensor(x) || is_dtensor(y));
            return at::mm(x, y);
          },
          {.out_placements = {{Shard(0)}}, .in_placements = {{Shard(0)}, {Replicate()}}});
      const at::Tensor got = product(distribute_tensor(a, mesh, {Shard(0)}),
                                     distribute_tensor(b, mesh, {Replicate()}));
      EXPECT_EQ(got.sizes(), at::IntArrayRef({rows, 2}));
      EXPECT_TRUE(at::equal(full_tensor(got), at::mm(a, b)));
    }
  });
}

TEST(LocalMap, PartialResultsAndTheirGradients) {
  run_ranks(2, [](int) {
    const DeviceMesh mesh = init_device_mesh("tp=2");
    at::Tensor a = whole_numbers({4, 6}, 1).requires_grad_();
    at::Tensor b = whole_numbers({6, 3}, 2).requires_grad_();
    at::mm(a, b).pow(2).sum().backward();
    const at::Tensor x = distribute_tensor(a.detach(), mesh, {Shard(1)}).requires_grad_();
    const at::Tensor y = distribute_tensor(b.detach(), mesh, {Shard(0)}).requires_grad_();
    const auto product =
        local_map([](const at::Tensor& l, const at::Tensor& r) { return at::mm(l, r); },
                  {.out_placements = {{Partial()}}});
    const at::Tensor out = product(x, y);
    EXPECT_TRUE(placements(out)[0].is_partial());
    redistribute(out, {Replicate()}).pow(2).sum().backward();
    EXPECT_TRUE(at::equal(full_tensor(x.grad()), a.grad()));
    EXPECT_TRUE(at::equal(full_tensor(y.grad()), b.grad()));
  });
}

TEST(LocalMap, ReplicatedInputsOfShardedWorkSayThatTheirGradientIsPartial) {
  run_ranks(2, [](int) {
    const DeviceMesh mesh = init_device_mesh("tp=2");
    at::Tensor w = whole_numbers({3}, 2).requires_grad_();
    const at::Tensor full = whole_numbers({4, 3}, 1);
    (full * w).sum().backward();
    const at::Tensor shared = distribute_tensor(w.detach(), mesh, {Replicate()}).requires_grad_();
    const auto scale =
        local_map([](const at::Tensor& x, const at::Tensor& by) { return x * by; },
                  {.out_placements = {{Shard(0)}}, .in_grad_placements = {{}, {Partial()}}});
    scale(distribute_tensor(full, mesh, {Shard(0)}), shared).sum().backward();
    EXPECT_TRUE(at::equal(full_tensor(shared.grad()), w.grad()));
  });
}

TEST(LocalMap, FindsTensorsInContainersAndLeavesTheRest) {
  run_ranks(2, [](int) {
    const DeviceMesh mesh = init_device_mesh("tp=2");
    const at::Tensor full = whole_numbers({4, 3});
    const at::Tensor x = distribute_tensor(full, mesh, {Shard(0)});
    const auto both = local_map(
        [](const std::vector<at::Tensor>& in, double factor, std::optional<at::Tensor> none) {
          EXPECT_FALSE(none.has_value());
          return std::make_tuple(in[0] + in[1], at::full({}, factor));
        },
        {.out_placements = {{Shard(0)}, {}}});
    const auto [sum, plain] = both(std::vector<at::Tensor>{x, x}, 3.0, std::optional<at::Tensor>());
    EXPECT_TRUE(at::equal(full_tensor(sum), full * 2));
    EXPECT_FALSE(is_dtensor(plain));
  });
}

TEST(LocalMap, InputsThatLieOtherwiseAreMovedOnRequestOnly) {
  run_ranks(2, [](int) {
    const DeviceMesh mesh = init_device_mesh("tp=2");
    const at::Tensor full = whole_numbers({4, 6});
    const at::Tensor x = distribute_tensor(full, mesh, {Shard(0)});
    const auto same = [](const at::Tensor& t) { return t.clone(); };
    LocalMapOptions options{.out_placements = {{Shard(1)}}, .in_placements = {{Shard(1)}}};
    EXPECT_THROW(local_map(same, options)(x), InvalidArgument);
    EXPECT_THROW(local_map(same, options)(full), InvalidArgument);
    options.redistribute_inputs = true;
    EXPECT_TRUE(at::equal(full_tensor(local_map(same, options)(x)), full));
    options.out_placements = {{Shard(1)}, {Shard(1)}};
    EXPECT_THROW(local_map(same, options)(x), InvalidArgument);
  });
}

}  // namespace local_map_test
}  // namespace tessera
