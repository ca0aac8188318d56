// Partial values of other element types than floats: numbers that wrap around, are rounded, are
// complex or change the type.
#include <ATen/Functions.h>
#include <ATen/ScalarOps.h>
#include <gtest/gtest.h>

#include <array>

#include "tessera/dtensor/dtensor.h"
#include "tests/support/parts.h"
#include "tests/support/ranks.h"
#include "tests/support/spread.h"

namespace tessera {
namespace partial_types_test {

using comm::init_device_mesh;
using test::run_ranks;
using test::spread;
using test::test_numbers;

/// A Partial and a number: the number becomes Partial, and has no dims as before. It must stay a
/// number, or ranks would have results of different types.
TEST(PartialTypes, ANumberAddedToAPartialOfIntegersIsOneOnAllRanks) {
  run_ranks(4, [](int) {
    const DeviceMesh mesh = init_device_mesh("tp=4");
    const at::Tensor full = at::arange(30).reshape({6, 5});
    for (const at::ScalarType type : {at::kBool, at::kByte, at::kInt, at::kLong}) {
      const at::Tensor count = full.to(type).sum(0);
      const at::Tensor x = spread(full.to(type), mesh, "S0").sum(0);
      ASSERT_TRUE(sharding(x).has_partial());
      for (const at::Scalar& number : {at::Scalar(2.5), at::Scalar(c10::complex<double>(0, 1))}) {
        at::Tensor given = at::scalar_to_tensor(number);
        given.unsafeGetTensorImpl()->set_wrapped_number(true);  // as Python passes it
        const at::Tensor y = x + given;
        EXPECT_EQ(to_local(y).scalar_type(), (count + given).scalar_type());
        EXPECT_TRUE(at::equal(full_tensor(y), count + given));
        EXPECT_TRUE(at::equal(full_tensor(x - given), count - given));
      }
    }
  });
}

/// max(3, 200) - 5 is not max(3 - 5, 200 - 5) where 3 - 5 is 254.
TEST(PartialTypes, AMaximumOfIntegersThatWrapAroundIsReducedFirst) {
  run_ranks(4, [](int) {
    const DeviceMesh mesh = init_device_mesh("tp=4");
    for (const at::ScalarType type : {at::kByte, at::kChar}) {
      const at::Tensor full = at::arange(0, 252, 9).reshape({7, 4}).to(type);
      const at::Tensor y = at::tensor({100, 3, 250, 60}).to(type);
      const at::Tensor x = spread(full, mesh, "S0"), other = spread(y, mesh, "R");
      const auto check = [&](const auto& f) {
        EXPECT_TRUE(at::equal(full_tensor(f(x.amax(0), other)), f(full.amax(0), y)));
        EXPECT_TRUE(at::equal(full_tensor(f(x.amin(0), other)), f(full.amin(0), y)));
      };
      check([](const at::Tensor& a, const at::Tensor&) { return a - 200; });
      check([](const at::Tensor& a, const at::Tensor&) { return a + 100; });
      check([](const at::Tensor& a, const at::Tensor&) { return -a; });
      check([](const at::Tensor& a, const at::Tensor& b) { return a + b; });
      check([](const at::Tensor& a, const at::Tensor& b) { return a - b; });
      check([](const at::Tensor& a, const at::Tensor& b) { return at::addcmul(a, b, b); });
      check([](const at::Tensor& a, const at::Tensor&) { return at::_foreach_neg({a})[0]; });
      check([](const at::Tensor& a, const at::Tensor&) { return a.clamp(10, 90); });
      check([](const at::Tensor& a, const at::Tensor& b) { return at::maximum(a, b); });
      check([](const at::Tensor& a, const at::Tensor& b) { return a + b.to(at::kComplexFloat); });
    }
    EXPECT_TRUE(sharding(spread(at::arange(8), mesh, "S0").amax().clamp(1, 3)).has_partial());
  });
}

/// 200 + 100 of uint8 is 44, of floats 300.
TEST(PartialTypes, ASumOfShortIntegersIsReducedBeforeItIsConverted) {
  run_ranks(4, [](int) {
    const DeviceMesh mesh = init_device_mesh("tp=4");
    for (const at::ScalarType type : {at::kByte, at::kChar, at::kInt, at::kLong}) {
      const at::Tensor full = at::arange(0, 252, 9).reshape({7, 4}).to(type);
      const at::Tensor sum = full.sum(0, false, type);
      const auto x = [&] { return spread(full, mesh, "S0").sum(0, false, type); };
      ASSERT_TRUE(sharding(x()).has_partial());
      for (const at::ScalarType to : {at::kByte, at::kChar, at::kInt, at::kLong, at::kFloat}) {
        EXPECT_TRUE(at::equal(full_tensor(x().to(to)), sum.to(to)));
        at::Tensor copy = spread(at::zeros({4}, to), mesh, "R");
        EXPECT_TRUE(at::equal(full_tensor(copy.copy_(x())), sum.to(to)));
      }
      EXPECT_TRUE(at::equal(full_tensor(x() * 0.5), sum * 0.5));
      EXPECT_TRUE(at::equal(full_tensor(x() + x().to(at::kFloat)), sum + sum.to(at::kFloat)));
      EXPECT_TRUE(at::equal(full_tensor(x() / 4), sum / 4));
      const at::Tensor table = at::outer(full.flatten(), full[1]).reshape({7, 4, 4});
      const at::Tensor tables = spread(table, mesh, "S0").sum(0, false, type);
      EXPECT_TRUE(at::equal(full_tensor(tables.trace()), table.sum(0, false, type).trace()));
    }
  });
}

/// 0.5 + 0.5 is 1, of truncated addends 0. Likewise averages of integers, which are rounded.
TEST(PartialTypes, ASumIsReducedBeforeItsFractionsAreDropped) {
  run_ranks(4, [](int) {
    const DeviceMesh mesh = init_device_mesh("tp=4");
    const at::Tensor full = test_numbers({7, 4, 6}, 3);
    const at::Tensor sum = full.sum(0);
    const auto x = [&] { return spread(full, mesh, "S0").sum(0); };
    for (const at::ScalarType to : {at::kByte, at::kInt, at::kLong}) {
      EXPECT_TRUE(at::equal(full_tensor(x().sum(0, false, to)), sum.sum(0, false, to)));
      EXPECT_TRUE(at::equal(full_tensor(x().sum(to)), sum.sum(to)));
      EXPECT_TRUE(at::equal(full_tensor(x().cumsum(0, to)), sum.cumsum(0, to)));
      EXPECT_TRUE(at::equal(full_tensor(x().to(to)), sum.to(to)));
    }
    const at::Tensor images = at::arange(0, 7 * 3 * 36).remainder(31).reshape({7, 1, 3, 6, 6});
    const auto pixels = [&](at::ScalarType type) {
      const at::Tensor out = spread(images.to(type), mesh, "S0").sum(0, false, type);
      EXPECT_TRUE(sharding(out).has_partial());
      return out;
    };
    const at::Tensor longs = images.sum(0), bytes = images.to(at::kByte).sum(0, false, at::kByte);
    EXPECT_TRUE(
        at::equal(full_tensor(at::avg_pool2d(pixels(at::kLong), 2)), at::avg_pool2d(longs, 2)));
    EXPECT_TRUE(
        at::equal(full_tensor(at::avg_pool3d(pixels(at::kLong), 2)), at::avg_pool3d(longs, 2)));
    const std::array<int64_t, 2> size{4, 9};
    EXPECT_TRUE(at::equal(full_tensor(at::upsample_bilinear2d(pixels(at::kByte), size, false)),
                          at::upsample_bilinear2d(bytes, size, false)));
    EXPECT_TRUE(at::equal(full_tensor(at::_upsample_bilinear2d_aa(pixels(at::kByte), size, false)),
                          at::_upsample_bilinear2d_aa(bytes, size, false)));
    EXPECT_TRUE(sharding(at::avg_pool2d(spread(images.to(at::kDouble), mesh, "S0").sum(0), 2))
                    .has_partial());
  });
}

/// A rule that asks whether a number is 0 gets no wrong answer for a complex one.
TEST(PartialTypes, AComplexNumberIsNotTakenForZero) {
  run_ranks(4, [](int) {
    const DeviceMesh mesh = init_device_mesh("tp=4");
    const at::Tensor full = test_numbers({7, 4}, 8).to(at::kComplexDouble);
    const at::Tensor sum = full.sum(0), mask = at::real(sum) > 0;
    const at::Tensor m = spread(mask, mesh, "R"), index = at::tensor({0, 2}, at::kLong);
    for (const c10::complex<double> value : {0., 1.}) {
      const at::Scalar number(value);
      const auto x = [&] { return spread(full, mesh, "S0").sum(0); };
      ASSERT_TRUE(sharding(x()).has_partial());
      const auto same = [](const at::Tensor& have, const at::Tensor& want) {
        EXPECT_TRUE(at::allclose(full_tensor(have), want, 1e-10, 1e-10));
      };
      same(at::constant_pad_nd(x(), {1, 1}, number), at::constant_pad_nd(sum, {1, 1}, number));
      same(x().masked_fill(m, number), sum.masked_fill(mask, number));
      same(x().index_fill(0, spread(index, mesh, "R"), number), sum.index_fill(0, index, number));
      same(x() + number, sum + number);
    }
  });
}

/// Truth values select them: the result's type is not that of the first operand.
TEST(PartialTypes, TypesOfResultsWithoutAMetaKernelAreTheirs) {
  run_ranks(4, [](int) {
    const DeviceMesh mesh = init_device_mesh("tp=4");
    const at::Tensor mask = test_numbers({3, 2}, 5) > 0;
    const at::Tensor single = at::scalar_tensor(2, at::kFloat), y = test_numbers({3, 2}, 6);
    for (const char* placement : {"S0", "S1", "R"}) {
      const auto m = spread(mask, mesh, placement), s = spread(single, mesh, "R");
      const auto x = spread(y, mesh, placement);
      const at::Tensor z = at::where(m, s, x), w = at::where(m, x.to(at::kFloat), x);
      EXPECT_EQ(z.scalar_type(), at::kDouble);
      EXPECT_EQ(at::where(m, x.to(at::kFloat), spread(single.to(at::kDouble), mesh, "R")).dtype(),
                at::kFloat);
      EXPECT_TRUE(at::equal(full_tensor(z), at::where(mask, single, y)));
      EXPECT_TRUE(at::equal(full_tensor(w), at::where(mask, y.to(at::kFloat), y)));
    }
    const at::Tensor sum = spread(at::stack({y, y, -y}), mesh, "S0").sum(0).detach();
    const at::Tensor leaf = sum.requires_grad_();
    ASSERT_TRUE(sharding(leaf).has_partial());
    at::where(spread(mask, mesh, "R"), leaf, spread(y, mesh, "R")).sum().backward();
    EXPECT_TRUE(at::equal(full_tensor(leaf.grad()), mask.to(at::kDouble)));
  });
}

}  // namespace partial_types_test
}  // namespace tessera
