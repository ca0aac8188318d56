#include "tessera/dtensor/parts/norm_of_parts.h"

#include <ATen/ops/full.h>
#include <ATen/ops/linalg_vector_norm.h>

#include <cmath>
#include <limits>

namespace tessera::dtensor {

bool NormOfParts::has_root() const { return !std::isinf(p) && p != 0 && p != 1; }

at::Tensor NormOfParts::of_part(const at::Tensor& part, at::ScalarType result,
                                const Over& over) const {
  const bool half = result == at::kHalf || result == at::kBFloat16;
  const at::ScalarType sums = half ? at::kFloat : result;
  at::Tensor wide = part.is_complex() ? part.abs() : part;
  if (wide.scalar_type() != result) wide = wide.to(sums);  // a norm converts only to wider types
  if (wide.numel() == 0 && (p < 0 || std::isinf(p))) {
    // The maximum, or a negative power, of an empty part is not an error here: other ranks have
    // elements.
    constexpr double kInfinity = std::numeric_limits<double>::infinity();
    return at::full(over.shape, p == -kInfinity ? kInfinity : 0, wide.options().dtype(sums));
  }
  const at::Tensor norm = at::linalg_vector_norm(wide, p, over.dims, over.keepdim, sums);
  return has_root() ? norm.pow(p) : norm;
}

ReduceOp NormOfParts::reduction() const {
  if (!std::isinf(p)) return ReduceOp::sum;
  return p > 0 ? ReduceOp::max : ReduceOp::min;
}

at::Tensor NormOfParts::root(at::Tensor reduced) const {
  return has_root() ? reduced.pow(1 / p) : reduced;
}

}  // namespace tessera::dtensor
