#pragma once

#include <gtest/gtest.h>

#include <torch/csrc/distributed/c10d/Types.hpp>

#include "tests/comm/rank_data.h"

/// Reductions the slow and obvious way, and the cases that tests of collectives go through.
namespace tessera::test {

using c10d::ReduceOp;

inline bool has_meaning(ReduceOp::RedOpType op, at::ScalarType dtype) {
  const bool integral = at::isIntegralType(dtype, true);
  if (op == ReduceOp::BAND || op == ReduceOp::BOR || op == ReduceOp::BXOR) return integral;
  if (op == ReduceOp::MIN || op == ReduceOp::MAX) return !at::isComplexType(dtype);
  if (op == ReduceOp::AVG) return dtype != at::kBool;
  return true;
}

/// One element after another in the widest type of its kind, the slow and obvious way.
inline at::Tensor reference(ReduceOp::RedOpType op, const Tensors& parts) {
  const auto dtype = parts[0].scalar_type();
  const auto wide = at::isComplexType(dtype)          ? at::kComplexDouble
                    : at::isIntegralType(dtype, true) ? at::kLong
                                                      : at::kDouble;
  at::Tensor all = parts[0].to(wide).clone();
  for (size_t r = 1; r < parts.size(); ++r) {
    const at::Tensor next = parts[r].to(wide);
    switch (op) {
      case ReduceOp::PRODUCT:
        all = all * next;
        break;
      case ReduceOp::MIN:
        all = at::minimum(all, next);
        break;
      case ReduceOp::MAX:
        all = at::maximum(all, next);
        break;
      case ReduceOp::BAND:
        all = at::bitwise_and(all, next);
        break;
      case ReduceOp::BOR:
        all = at::bitwise_or(all, next);
        break;
      case ReduceOp::BXOR:
        all = at::bitwise_xor(all, next);
        break;
      default:
        all = all + next;
    }
  }
  if (op == ReduceOp::AVG) {
    const auto n = static_cast<int64_t>(parts.size());
    all = wide == at::kLong ? all.div(n, "trunc") : all / n;
  }
  if (dtype == at::kBool) return all != 0;
  return all.to(dtype);
}

inline Tensors of_all_ranks(int n, at::IntArrayRef shape, at::ScalarType dtype, int64_t salt = 0) {
  Tensors parts;
  for (int r = 0; r < n; ++r) parts.push_back(data_of(r, shape, dtype, salt));
  return parts;
}

template <typename F>
void for_each_case(const F& f) {
  for (const auto dtype : test::all_dtypes()) {
    for (const auto& shape : test::some_shapes()) {
      SCOPED_TRACE(::testing::Message() << dtype << " " << at::IntArrayRef(shape));
      f(at::IntArrayRef(shape), dtype);
    }
  }
}

}  // namespace tessera::test
