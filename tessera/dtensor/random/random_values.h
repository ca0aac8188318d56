#pragma once

#include <ATen/core/Tensor.h>

#include "tessera/dtensor/random/draws.h"
#include "tessera/dtensor/tensor/sharded_tensor.h"

/// Random values for sharded tensors: distribution, dtype, and how they are written.
namespace tessera::dtensor {

inline const Sharding& sharding_of(const at::Tensor& tensor) {
  return sharded_meta(tensor)->sharding();
}

// For the local part of `self`, in a dtype at least as wide as its own.
at::Tensor uniform_for(const at::Tensor& self, Draws& draws, double from, double to);
at::Tensor normal_for(const at::Tensor& self, Draws& draws, double mean, double deviation);
/// In (0, 1).
at::Tensor inside_for(const at::Tensor& self, Draws& draws);
/// Integers in [from, from + count); a count of 0 means 2^64.
at::Tensor between(const at::Tensor& self, Draws& draws, int64_t from, uint64_t count);
/// One past the largest integer that random_() may give a dtype.
uint64_t random_limit(at::ScalarType dtype);
/// In [0, 1), in double: 2^-24 is too coarse for rare events.
at::Tensor chances_for(const Sharding& sharding, Draws& draws);

/// Wraps values that were drawn for the placements of `like`, with Partial axes replicated.
at::Tensor sharded_like(const at::Tensor& like, const at::Tensor& values);

/// Writes drawn values into a sharded tensor. All ranks draw the same values for a Partial one;
/// every reduction except sum, product and xor reduces them to themselves, and for those only the
/// first rank writes the values.
void write_drawn(const at::Tensor& self, const at::Tensor& values);

}  // namespace tessera::dtensor
