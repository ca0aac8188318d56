#pragma once

#include <ATen/core/Tensor.h>

#include <optional>

#include "tessera/sharding/placement.h"

/// The dtypes and operations that backends support. Gloo has neither bool, complex nor 16-bit
/// integers, and no average: pure data movement uses bytes instead; a reduction uses an equivalent
/// dtype and operation.
namespace tessera::exec {

/// The same bytes, flat, in a dtype that every backend can move.
at::Tensor as_movable(const at::Tensor& contiguous);
/// How many of its elements make one of `dtype`.
int64_t movable_scale(at::ScalarType dtype);

struct ReduceForm {
  at::ScalarType dtype;  // to view (same size) or cast the data as
  ReduceOp op;
  bool cast = false;  // a conversion rather than another view of the bytes
  /// After the cast, and before the cast back: makes the order of int64 that of the uint64.
  bool flips_sign = false;
};

/// Throws NotSupported for undefined reductions (the maximum of complex numbers).
ReduceForm reduce_form(at::ScalarType dtype, ReduceOp op);

}  // namespace tessera::exec
