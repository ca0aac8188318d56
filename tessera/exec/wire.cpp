#include "tessera/exec/wire.h"

#include <c10/core/ScalarType.h>

#include "tessera/base/errors.h"
#include "tessera/exec/buffers.h"

namespace tessera::exec {
namespace {

bool moves_as_it_is(at::ScalarType dtype) {
  switch (dtype) {
    case at::kByte:
    case at::kChar:
    case at::kInt:
    case at::kLong:
    case at::kHalf:
    case at::kFloat:
    case at::kDouble:
    case at::kBFloat16:
      return true;
    default:
      return false;
  }
}

[[noreturn]] void no_such_reduction(at::ScalarType dtype, ReduceOp op) {
  throw NotSupported(join_text("a Partial(", reduce_op_name(op), ") of ", c10::toString(dtype),
                               " tensors cannot be reduced"));
}

bool is_bitwise(ReduceOp op) {
  return op == ReduceOp::band || op == ReduceOp::bor || op == ReduceOp::bxor;
}

}  // namespace

int64_t movable_scale(at::ScalarType dtype) {
  return moves_as_it_is(dtype) ? 1 : static_cast<int64_t>(c10::elementSize(dtype));
}

at::Tensor as_movable(const at::Tensor& contiguous) {
  if (moves_as_it_is(contiguous.scalar_type())) return alias(contiguous, {contiguous.numel()});
  return alias_as(contiguous, at::kByte);
}

ReduceForm reduce_form(at::ScalarType dtype, ReduceOp op) {
  if (dtype == at::kBool) {
    // For bool: a sum is an or, a product an and.
    switch (op) {
      case ReduceOp::sum:
      case ReduceOp::max:
      case ReduceOp::bor:
        return {at::kByte, ReduceOp::max};
      case ReduceOp::product:
      case ReduceOp::min:
      case ReduceOp::band:
        return {at::kByte, ReduceOp::min};
      case ReduceOp::bxor:
        return {at::kByte, ReduceOp::bxor};
      case ReduceOp::avg:
        no_such_reduction(dtype, op);
    }
  }
  if (c10::isComplexType(dtype)) {
    if (op != ReduceOp::sum) no_such_reduction(dtype, op);
    if (dtype == at::kComplexHalf) return {at::kHalf, op};
    return {c10::toRealValueType(dtype), op};
  }
  if (is_bitwise(op) && c10::isFloatingType(dtype)) no_such_reduction(dtype, op);
  if (moves_as_it_is(dtype)) return {dtype, op};
  if (c10::isFloatingType(dtype)) return {at::kFloat, op, true};
  if (dtype == at::kUInt64) {
    return {at::kLong, op, true, op == ReduceOp::max || op == ReduceOp::min};
  }
  if (dtype == at::kUInt32) return {at::kLong, op, true};
  return {at::kInt, op, true};
}

}  // namespace tessera::exec
