#include "tests/support/parts.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/bitwise_and.h>
#include <ATen/ops/bitwise_or.h>
#include <ATen/ops/bitwise_xor.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/ones_like.h>

#include "tessera/base/intern.h"
#include "tessera/sharding/local_shape.h"

namespace tessera::test {
namespace {

/// The share of rank `index` of `count` of `full` under a reduction. Rank 0 compensates for the
/// others.
at::Tensor share_of(const at::Tensor& full, ReduceOp op, int count, int index, uint64_t seed) {
  const auto other = [&](int i) {
    Rng rng(hash_mix(seed, static_cast<size_t>(i)));
    const at::Tensor noise = random_whole_numbers(rng, full.sizes().vec(), full.scalar_type());
    switch (op) {
      case ReduceOp::sum:
      case ReduceOp::avg:
      case ReduceOp::bxor:
        return noise;
      case ReduceOp::max:
        return full - noise.abs();
      case ReduceOp::min:
        return full + noise.abs();
      case ReduceOp::product:
        return at::ones_like(full);
      case ReduceOp::band:
        return at::bitwise_or(full, noise);
      case ReduceOp::bor:
        return at::bitwise_and(full, noise);
    }
    return noise;
  };
  if (index > 0) return other(index);
  at::Tensor mine = op == ReduceOp::avg ? full * count : full.clone();
  for (int i = 1; i < count; ++i) {
    if (op == ReduceOp::sum || op == ReduceOp::avg) mine = mine - other(i);
    if (op == ReduceOp::bxor) mine = at::bitwise_xor(mine, other(i));
  }
  return mine;
}

}  // namespace

at::Tensor random_whole_numbers(Rng& rng, const std::vector<int64_t>& shape, at::ScalarType dtype) {
  at::Tensor out = at::empty(shape, at::kLong);
  auto* data = out.mutable_data_ptr<int64_t>();
  for (int64_t i = 0; i < out.numel(); ++i) data[i] = rng.between(-20, 20);
  return out.to(dtype);
}

at::Tensor whole_numbers(const std::vector<int64_t>& shape, uint64_t seed) {
  Rng rng(seed);
  return random_whole_numbers(rng, shape, at::kDouble);
}

at::Tensor part_of(const at::Tensor& full, const Sharding& sharding, const Coordinate& coordinate,
                   uint64_t seed) {
  at::Tensor out = full;
  for (int axis = 0; axis < sharding.mesh().ndim(); ++axis) {
    const Placement& p = sharding.placement(axis);
    if (!p.is_partial()) continue;
    // The split must differ from axis to axis and, on inner axes, between the outer shares.
    out = share_of(out, p.reduce_op(), sharding.mesh().size(axis),
                   coordinate[static_cast<size_t>(axis)], seed);
    seed = hash_mix(seed, static_cast<size_t>(coordinate[static_cast<size_t>(axis)]) + 7);
  }
  for (int dim = 0; dim < sharding.ndim(); ++dim) {
    std::vector<at::Tensor> pieces;
    for (const auto& interval : held_intervals(sharding, dim, coordinate)) {
      pieces.push_back(out.narrow(dim, interval.begin, interval.size()));
    }
    out = pieces.empty() ? out.narrow(dim, 0, 0) : at::cat(pieces, dim);
  }
  return out.contiguous();
}

}  // namespace tessera::test
