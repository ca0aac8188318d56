// Pooling over sharded spatial dims against the plain op, with gradients and places of maxima.
#include <ATen/ops/allclose.h>
#include <ATen/ops/avg_pool1d.h>
#include <ATen/ops/avg_pool2d.h>
#include <ATen/ops/avg_pool3d.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <ATen/ops/max_pool2d_with_indices.h>
#include <ATen/ops/max_pool3d_with_indices.h>
#include <ATen/ops/randperm.h>
#include <gtest/gtest.h>
#include <torch/autograd.h>

#include <limits>

#include "tessera/base/errors.h"
#include "tessera/comm/threads.h"
#include "tessera/comm/world.h"
#include "tessera/dtensor/dtensor.h"
#include "tessera/dtensor/policy.h"
#include "tessera/observe/expect.h"
#include "tessera/observe/recorder.h"
#include "tests/support/ranks.h"
#include "tests/support/spread.h"
#include "tests/support_pure/property.h"

namespace tessera {
namespace pooling_test {

using comm::init_device_mesh;
using test::run_ranks;
using test::spread;

using Numbers = std::vector<int64_t>;

struct Case {
  Numbers input, kernel, stride, padding, dilation = {1};
  bool ceil = false, count_padding = true;
  std::optional<int64_t> divisor = {};

  std::string to_text() const {
    return join_text(
        "input ", shape_text(input), ", kernel ", list_text(kernel), ", stride ", list_text(stride),
        ", padding ", list_text(padding), ", dilation ", list_text(dilation), ceil ? ", ceil" : "",
        count_padding ? "" : ", padding not counted", ", divisor ", divisor.value_or(0));
  }
};

/// No two alike, so that maxima have one place.
at::Tensor distinct(const Numbers& shape) {
  return at::randperm(c10::multiply_integers(shape), at::kDouble).reshape(shape);
}

/// Results, then the gradient of the input.
std::vector<at::Tensor> average(const Case& c, const at::Tensor& x) {
  const auto pool = c.kernel.size() == 3 ? &at::avg_pool3d : &at::avg_pool2d;
  const at::Tensor y = pool(x, c.kernel, c.stride, c.padding, c.ceil, c.count_padding, c.divisor);
  (y * y).sum().backward();
  return {y.detach(), x.grad()};
}
std::vector<at::Tensor> maxima(const Case& c, const at::Tensor& x) {
  const auto pool =
      c.kernel.size() == 3 ? &at::max_pool3d_with_indices : &at::max_pool2d_with_indices;
  const auto [y, places] = pool(x, c.kernel, c.stride, c.padding, c.dilation, c.ceil);
  (y * y).sum().backward();
  return {y.detach(), places, x.grad()};
}

void check(const Case& c, const at::Tensor& full, const DeviceMesh& mesh,
           const std::string& placements) {
  SCOPED_TRACE(c.to_text() + " : " + placements);
  for (const auto& pool : {average, maxima}) {
    const auto want = pool(c, full.detach().clone().requires_grad_());
    const auto got = pool(c, spread(full, mesh, placements).requires_grad_());
    for (size_t i = 0; i < got.size(); ++i) {
      ASSERT_EQ(got[i].sizes(), want[i].sizes()) << i;
      EXPECT_TRUE(at::allclose(full_tensor(got[i]), want[i], 1e-12, 1e-12)) << "result " << i;
    }
  }
}

TEST(Pooling, OverShardedSpaceKeepsTheShard) {
  const at::Tensor full = distinct({2, 3, 16, 10});
  run_ranks(4, [&](int) {
    const DeviceMesh mesh = init_device_mesh("sp=4");
    for (const char* placement : {"S2", "S3"}) {
      const at::Tensor x = spread(full, mesh, placement);
      EXPECT_EQ(sharding(at::avg_pool2d(x, 3, 2, 1)).placements_text(), placement);
      EXPECT_EQ(sharding(std::get<1>(at::max_pool2d_with_indices(x, 2))).placements_text(),
                placement);
    }
    check({{2, 3, 16, 10}, {3, 2}, {2, 1}, {1, 1}}, full, mesh, "S2");
    check({{3, 16, 10}, {3, 2}, {2, 1}, {1, 1}}, full[0], mesh, "S2");
  });
}

TEST(Pooling, SpaceBatchAndChannelsAtOnce) {
  const at::Tensor full = distinct({3, 4, 9, 7});
  const Case c{full.sizes().vec(), {3, 3}, {2, 2}, {1, 1}, {1}, true, false};
  run_ranks(4, [&](int) {
    const DeviceMesh mesh = init_device_mesh("a=2,b=2");
    for (const char* placements : {"S2,S3", "S2,S2", "S0,S2", "S3,S1", "SS2(2),S0", "R,S3"})
      check(c, full, mesh, placements);
  });
}

TEST(Pooling, RandomCasesMatch) {
  test::for_each_seed(60, [](test::Rng& rng) {
    const int ranks = rng.int_between(2, 4);
    const int dims = rng.int_between(2, 3);
    Case c{.input = {2, 2}, .kernel = {}, .stride = {}, .padding = {}, .dilation = {}};
    for (int d = 0; d < dims; ++d) {
      c.kernel.push_back(rng.between(1, 4));
      c.stride.push_back(rng.between(1, 4));
      c.padding.push_back(rng.between(0, c.kernel.back() / 2));
      c.dilation.push_back(rng.between(1, 2));
      c.input.push_back(rng.between(8, 12));
    }
    c.ceil = rng.chance(50);
    c.count_padding = rng.chance(50);
    if (rng.chance(20)) c.divisor = 5;
    const at::Tensor full = distinct(c.input);
    const std::string placement = join_text("S", 2 + rng.int_between(0, dims - 1));
    run_ranks(ranks,
              [&](int) { check(c, full, init_device_mesh(join_text("sp=", ranks)), placement); });
  });
}

TEST(Pooling, RaggedAndEmptyParts) {
  const at::Tensor full = distinct({1, 2, 13, 4});
  run_ranks(4, [&](int rank) {
    const DeviceMesh mesh = init_device_mesh("sp=4");
    const Numbers begin = {0, 0, 7, 8, 13};
    const auto r = static_cast<size_t>(rank);
    const at::Tensor x = from_local(full.slice(2, begin[r], begin[r + 1]), mesh, {Shard(2)});
    EXPECT_TRUE(
        at::allclose(full_tensor(at::avg_pool2d(x, 3, 2, 1)), at::avg_pool2d(full, 3, 2, 1)));
    const auto [value, place] = at::max_pool2d_with_indices(x, {5, 2}, 4);
    EXPECT_TRUE(
        at::equal(full_tensor(value), std::get<0>(at::max_pool2d_with_indices(full, {5, 2}, 4))));
    EXPECT_TRUE(
        at::equal(full_tensor(place), std::get<1>(at::max_pool2d_with_indices(full, {5, 2}, 4))));
  });
}

TEST(Pooling, OfInfinitiesAndNoNumbersIsThePlainOne) {
  at::Tensor full = at::full({1, 1, 12, 6}, -std::numeric_limits<double>::infinity(), at::kDouble);
  full.select(2, 7).fill_(std::numeric_limits<double>::quiet_NaN());
  const auto [value, place] = at::max_pool2d_with_indices(full, 3, 2, 1);
  run_ranks(3, [&](int) {
    const auto [got, where] =
        at::max_pool2d_with_indices(spread(full, init_device_mesh("sp=3"), "S2"), 3, 2, 1);
    EXPECT_TRUE(at::allclose(full_tensor(got), value, 0, 0, true));
    EXPECT_TRUE(at::equal(full_tensor(where), place));
  });
}

TEST(Pooling, SendsHalosAndWhereWindowsEndWithThePartsNothing) {
  const at::Tensor full = distinct({1, 2, 16, 6});
  run_ranks(4, [&](int) {
    const at::Tensor x = spread(full, init_device_mesh("sp=4"), "S2").requires_grad_();
    comm::Recorder recorder(*comm::current_world());
    const CommPolicy explicit_only(ImplicitComm::forbid);
    const at::Tensor halves = std::get<0>(at::max_pool2d_with_indices(x, 2));
    (at::avg_pool2d(halves, 2) * 2).sum().backward();
    EXPECT_EQ(comm::expect_comm(recorder, "nothing"), "");
    at::avg_pool2d(x.detach(), 3, 1, 1);
    EXPECT_EQ(comm::expect_comm(recorder, "1 all_to_all, 0 implicit"), "");
    // Two rows of a middle rank travel, of 2 channels and 6 columns, in doubles.
    EXPECT_LE(recorder.bytes(), 2 * 2 * 6 * 8);
  });
}

TEST(Pooling, KeepsChannelsLastAndSmallTypes) {
  const at::Tensor full =
      distinct({2, 4, 12, 6}).to(at::kFloat).contiguous(at::MemoryFormat::ChannelsLast);
  const at::Tensor small = (full / 64).to(at::kBFloat16);
  run_ranks(3, [&](int rank) {
    const DeviceMesh mesh = init_device_mesh("sp=3");
    const at::Tensor x =
        from_local(full.narrow(2, 4 * rank, 4).contiguous(at::MemoryFormat::ChannelsLast), mesh,
                   {Shard(2)}, {.shape = full.sizes().vec(), .stride = full.strides().vec()});
    const at::Tensor y = at::avg_pool2d(x, 3, 1, 1);
    EXPECT_TRUE(y.is_contiguous(at::MemoryFormat::ChannelsLast));
    EXPECT_TRUE(at::allclose(full_tensor(y), at::avg_pool2d(full, 3, 1, 1)));
    const at::Tensor z = at::avg_pool2d(spread(small, mesh, "S2"), 3, 1, 1);
    EXPECT_EQ(z.scalar_type(), at::kBFloat16);
    EXPECT_TRUE(at::allclose(full_tensor(z), at::avg_pool2d(small, 3, 1, 1), 1e-2, 0));
  });
}

TEST(Pooling, OfOneDimAndItsSecondDerivative) {
  const at::Tensor full = distinct({2, 3, 14});
  const auto second = [](const at::Tensor& x) {
    const at::Tensor y = at::avg_pool1d(x * x, 3, 2, 1);
    const at::Tensor first = torch::autograd::grad({(y * y).sum()}, {x}, {}, {}, true)[0];
    return torch::autograd::grad({(first * first).sum()}, {x})[0];
  };
  const at::Tensor want = second(full.clone().requires_grad_());
  run_ranks(4, [&](int) {
    const at::Tensor x = spread(full, init_device_mesh("sp=4"), "S2").requires_grad_();
    EXPECT_TRUE(at::allclose(full_tensor(second(x)), want));
  });
}

TEST(Pooling, BadCallsSayWhatLibtorchSays) {
  run_ranks(2, [&](int) {
    const at::Tensor x = spread(distinct({1, 2, 8, 6}), init_device_mesh("sp=2"), "S2");
    EXPECT_THROW(at::avg_pool2d(x, 2, 1, 2), c10::Error);
    EXPECT_THROW(at::max_pool2d_with_indices(x, 9), c10::Error);
    EXPECT_THROW(at::max_pool2d_with_indices(x, {2, 2, 2}), c10::Error);
  });
}

}  // namespace pooling_test
}  // namespace tessera
