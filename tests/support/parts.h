#pragma once

#include <ATen/core/Tensor.h>

#include "tessera/sharding/sharding.h"
#include "tests/support_pure/property.h"

/// Reference parts of a global tensor, computed in a simple, slow way.
namespace tessera::test {

/// Small integers as `dtype`, the same on every rank for the same rng state.
at::Tensor random_whole_numbers(Rng& rng, const std::vector<int64_t>& shape, at::ScalarType dtype);

/// The same as float64, from a seed.
at::Tensor whole_numbers(const std::vector<int64_t>& shape, uint64_t seed = 1);

/// What the rank at `coordinate` holds of `full`. On partial axes the value is split so that the
/// reduction over the axis restores it; `seed` selects the split, the same for all ranks.
at::Tensor part_of(const at::Tensor& full, const Sharding& sharding, const Coordinate& coordinate,
                   uint64_t seed = 1);

}  // namespace tessera::test
