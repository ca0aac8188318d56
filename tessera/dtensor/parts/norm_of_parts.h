#pragma once

#include <ATen/core/Tensor.h>

#include "tessera/sharding/placement.h"

namespace tessera::dtensor {

/// The p-norm of a sharded tensor, in three steps: each rank sums its powers, the sums are reduced
/// over the ranks, then the root is taken.
///
///   p = 2, [3, 4] over 2 ranks:   9 and 16, sum 25, root 5
struct NormOfParts {
  double p = 2;

  /// What the norm is taken over: all dims, or these. `shape` is that of the local result.
  struct Over {
    at::OptionalIntArrayRef dims = std::nullopt;
    bool keepdim = false;
    at::IntArrayRef shape = {};
  };

  /// The sum of |x|^p over a part; for p = inf (-inf) the maximum (minimum). `result` is the real
  /// dtype of the norm. The sum may be wider, because float16 overflows at a norm of 256.
  at::Tensor of_part(const at::Tensor& part, at::ScalarType result, const Over& over) const;
  ReduceOp reduction() const;  ///< over the ranks
  at::Tensor root(at::Tensor reduced) const;

 private:
  bool has_root() const;
};

}  // namespace tessera::dtensor
