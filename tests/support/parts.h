#pragma once

#include <ATen/core/Tensor.h>

#include "tessera/sharding/sharding.h"
#include "tests/support_pure/property.h"

/// Reference parts of a global tensor, made the slow and obvious way.
namespace tessera::test {

/// Small whole numbers as `dtype`, the same on every rank for the same rng state.
at::Tensor random_whole_numbers(Rng& rng, const std::vector<int64_t>& shape, at::ScalarType dtype);

/// The same as float64, of a seed.
at::Tensor whole_numbers(const std::vector<int64_t>& shape, uint64_t seed = 1);

/// What the rank at `coordinate` holds of `full`. On partial axes the value is split so that the
/// reduction over the axis gives it back; `seed` picks the split, the same for all ranks.
at::Tensor part_of(const at::Tensor& full, const Sharding& sharding, const Coordinate& coordinate,
                   uint64_t seed = 1);

}  // namespace tessera::test
