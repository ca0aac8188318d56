#pragma once

#include <ATen/core/Tensor.h>

#include "tessera/sharding/placement.h"

namespace tessera::dtensor {

/// The p-norm of a tensor that lies on several ranks, in three steps: each rank's powers are added
/// up, the sums are reduced over the ranks, then comes the root.
///
///   p = 2, [3, 4] over 2 ranks:   9 and 16, added up 25, root 5
struct NormOfParts {
  double p = 2;

  /// What the norm is taken over: all dims, or these. `shape` is that of the local result.
  struct Over {
    at::OptionalIntArrayRef dims = std::nullopt;
    bool keepdim = false;
    at::IntArrayRef shape = {};
  };

  /// |x|^p added up over a part; for p = inf (-inf) the largest (smallest). `result` is the type of
  /// the norm, a real one; the sum may have a wider one, because halves overflow at a norm of 256.
  at::Tensor of_part(const at::Tensor& part, at::ScalarType result, const Over& over) const;
  ReduceOp reduction() const;  ///< over the ranks
  at::Tensor root(at::Tensor reduced) const;

 private:
  bool has_root() const;
};

}  // namespace tessera::dtensor
