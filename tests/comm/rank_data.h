#pragma once

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <numeric>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <vector>

#include "tessera/comm/group.h"
#include "tessera/comm/world.h"

/// What the tests of collectives share: each rank's data as a formula, so that every rank can write
/// down what it must get from the others.
namespace tessera::test {

using Tensors = std::vector<at::Tensor>;

inline std::vector<int> iota(int n, int first = 0, int step = 1) {
  std::vector<int> ranks(static_cast<size_t>(n));
  for (int i = 0; i < n; ++i) ranks[static_cast<size_t>(i)] = first + i * step;
  return ranks;
}

/// My group of all ranks of a world of `n`.
inline std::shared_ptr<const comm::Group> everyone(int n) {
  return comm::current_world()->group(iota(n));
}

/// Small whole numbers that every dtype holds exactly, different for each rank and place.
inline at::Tensor data_of(int rank, at::IntArrayRef shape, at::ScalarType dtype, int64_t salt = 0) {
  int64_t numel = 1;
  for (const int64_t size : shape) numel *= size;
  const at::Tensor numbers =
      at::remainder(at::arange(numel, at::kLong) * 7 + (rank * 5 + salt * 3), 6).reshape(shape);
  if (dtype == at::kBool) return at::remainder(numbers, 2).to(at::kBool);
  if (at::isComplexType(dtype)) {
    return at::complex(numbers.to(at::kDouble), (numbers - rank).to(at::kDouble)).to(dtype);
  }
  return numbers.to(dtype);
}

/// Bit for bit, and of one shape and dtype.
inline ::testing::AssertionResult same(const at::Tensor& got, const at::Tensor& want) {
  if (got.sizes() == want.sizes() && got.scalar_type() == want.scalar_type() &&
      (got.numel() == 0 || at::equal(got.contiguous().view(-1).view(at::kByte),
                                     want.contiguous().view(-1).view(at::kByte)))) {
    return ::testing::AssertionSuccess();
  }
  return ::testing::AssertionFailure() << "got\n" << got << "\nwant\n" << want;
}

inline const std::vector<at::ScalarType>& all_dtypes() {
  static const std::vector<at::ScalarType> kTypes = {
      at::kBool,          at::kByte,       at::kChar,   at::kShort,        at::kInt,
      at::kLong,          at::kUInt16,     at::kUInt32, at::kUInt64,       at::kHalf,
      at::kBFloat16,      at::kFloat,      at::kDouble, at::kComplexFloat, at::kComplexDouble,
      at::kFloat8_e4m3fn, at::kFloat8_e5m2};
  return kTypes;
}

/// Shapes from empty over one element to more than one block of the reduction.
inline std::vector<std::vector<int64_t>> some_shapes() {
  return {{0}, {1}, {}, {5}, {3, 4}, {2, 0, 3}, {1500}};
}

}  // namespace tessera::test
