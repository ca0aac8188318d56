#pragma once

#include <ATen/core/Tensor.h>

#include <optional>

#include "tessera/sharding/placement.h"

/// What a backend can carry. Gloo knows neither bool nor complex nor 16-bit integers, and no
/// average: bytes stand in where data only moves; a reduction gets a type and an operation that
/// mean the same.
namespace tessera::exec {

/// Flat, the same bytes, in a type that every backend moves.
at::Tensor as_movable(const at::Tensor& contiguous);
/// How many of its elements make one of `dtype`.
int64_t movable_scale(at::ScalarType dtype);

struct ReduceForm {
  at::ScalarType dtype;  // to see (same size) or cast the data as
  ReduceOp op;
  bool cast = false;  // a conversion rather than another view of the bytes
  /// After the cast, and before the cast back: the order of int64 is then that of the uint64.
  bool flips_sign = false;
};

/// Throws NotSupported where the reduction has no meaning (the maximum of complex numbers).
ReduceForm reduce_form(at::ScalarType dtype, ReduceOp op);

}  // namespace tessera::exec
