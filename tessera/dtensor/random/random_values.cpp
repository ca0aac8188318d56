#include "tessera/dtensor/random/random_values.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/complex.h>

#include <numbers>

#include "tessera/base/errors.h"
#include "tessera/dtensor/tensor/layout.h"
#include "tessera/sharding/without_partial.h"

namespace tessera::dtensor {
namespace {

/// The dtype to compute in.
at::ScalarType real_type(at::ScalarType dtype) {
  const bool wide = dtype == at::kDouble || dtype == at::kComplexDouble || dtype == at::kLong;
  return wide ? at::kDouble : at::kFloat;
}

/// The number of bits a uniform number of this dtype may have without being rounded up to 1.
int mantissa_bits(at::ScalarType dtype) {
  switch (dtype) {
    case at::kDouble:
    case at::kComplexDouble:
      return 53;
    case at::kHalf:
    case at::kComplexHalf:
      return 11;
    case at::kBFloat16:
      return 8;
    default:
      return 24;
  }
}

/// Whether this rank stores drawn values in a Partial tensor: on axes that sum, multiply or xor,
/// only the first rank does, and the others store neutral elements.
bool is_first_of_sums(const Sharding& sharding) {
  const auto& coordinate = sharding.mesh().my_coordinate();
  if (!coordinate) return true;
  for (int axis = 0; axis < sharding.mesh().ndim(); ++axis) {
    const Placement& placement = sharding.placement(axis);
    if (!placement.is_partial()) continue;
    const ReduceOp op = placement.reduce_op();
    const bool adds = op == ReduceOp::sum || op == ReduceOp::bxor || op == ReduceOp::product;
    if (adds && (*coordinate)[static_cast<size_t>(axis)] != 0) return false;
  }
  return true;
}

/// Draws real and imaginary parts separately for complex tensors.
template <typename Draw>
at::Tensor real_or_complex(const at::Tensor& self, Draw draw) {
  if (!self.is_complex()) return draw();
  const at::Tensor real = draw();
  return at::complex(real, draw());
}

}  // namespace

at::Tensor uniform_for(const at::Tensor& self, Draws& draws, double from, double to) {
  const at::ScalarType dtype = self.scalar_type();
  return real_or_complex(self, [&] {
    at::Tensor drawn = draws.uniform(sharding_of(self), real_type(dtype), mantissa_bits(dtype));
    if (from != 0 || to != 1) drawn.mul_(to - from).add_(from);
    return drawn;
  });
}

at::Tensor normal_for(const at::Tensor& self, Draws& draws, double mean, double deviation) {
  const double each = self.is_complex() ? deviation / std::numbers::sqrt2 : deviation;
  const auto type = real_type(self.scalar_type());
  at::Tensor drawn =
      real_or_complex(self, [&] { return draws.normal(sharding_of(self), type).mul_(each); });
  return drawn.add_(mean);
}

at::Tensor inside_for(const at::Tensor& self, Draws& draws) {
  return draws.inside(sharding_of(self), real_type(self.scalar_type()));
}

at::Tensor between(const at::Tensor& self, Draws& draws, int64_t from, uint64_t count) {
  return draws.below(sharding_of(self), count).add_(from);
}

uint64_t random_limit(at::ScalarType dtype) {
  if (at::isFloatingType(dtype)) return (uint64_t{1} << mantissa_bits(dtype)) + 1;
  if (dtype == at::kBool) return 2;
  if (dtype == at::kLong) return uint64_t{1} << 63;
  return uint64_t{1} << (8 * c10::elementSize(dtype) - (dtype == at::kByte ? 0 : 1));
}

at::Tensor chances_for(const Sharding& sharding, Draws& draws) {
  return draws.uniform(sharding, at::kDouble, 53);
}

at::Tensor sharded_like(const at::Tensor& like, const at::Tensor& values) {
  return wrap(
      values,
      without_partial(sharding_of(like)).with_dtype(static_cast<DType>(values.scalar_type())));
}

void write_drawn(const at::Tensor& self, const at::Tensor& values) {
  const ShardedMeta* meta = sharded_meta(self);
  require(!meta->is_copy_of_view() || meta->origin() != nullptr,
          "random numbers written to a view of a sharded tensor that had to be gathered would be "
          "lost; draw into the tensor itself");
  if (is_first_of_sums(meta->sharding())) {
    meta->local().copy_(values);
  } else {
    bool product = false;
    for (const Placement& placement : meta->sharding().placements()) {
      product = product || (placement.is_partial() && placement.reduce_op() == ReduceOp::product);
    }
    meta->local().fill_(product ? 1 : 0);
  }
}

}  // namespace tessera::dtensor
