#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <span>

#include "tessera/collective/collective.h"

/// Reductions over the tensors of several ranks, always in group order (0, 1, 2, ...), so the same
/// inputs give the same bits on every rank and in every run.
///
///   - half, bfloat16 and float8 are summed in float and rounded once at the end
///   - integers wrap; `avg` of integers is summed in 64 bits, then divided towards zero
///   - bool: sum, max and bor are "or"; product, min and band are "and"
///   - min and max propagate NaN, as at::minimum does
///   - premul_sum multiplies each rank's tensor by that rank's factor first
namespace tessera::comm {

/// Throws InvalidArgument for undefined combinations: bitwise ops on floats, order on complex, ...
void check_reduce(Collective what, const c10d::ReduceOp& op, c10::ScalarType dtype);

struct ReduceKind {
  c10d::ReduceOp::RedOpType op = c10d::ReduceOp::SUM;
  std::span<const double> factors;  ///< premul_sum: one per source
};

/// The factor of a premul_sum; 1 for all others.
double premul_factor(const c10d::ReduceOp& op);

/// Reduces `count` elements at each source into each target, in host memory. A target may be one of
/// the sources. Throws NotSupported for a dtype without arithmetic here.
void reduce_flat(c10::ScalarType dtype, const ReduceKind& kind,
                 std::span<const void* const> sources, std::span<void* const> targets,
                 int64_t count);

/// The same through ATen, for tensors of one shape on any device. Returns a new tensor.
at::Tensor reduce_tensors(const ReduceKind& kind, std::span<const at::Tensor> sources);

}  // namespace tessera::comm
