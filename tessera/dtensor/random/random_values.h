#pragma once

#include <ATen/core/Tensor.h>

#include "tessera/dtensor/random/draws.h"
#include "tessera/dtensor/sharded_tensor.h"

/// Drawn values for sharded tensors: which distribution, in which type, and how they are written.
namespace tessera::dtensor {

inline const Sharding& sharding_of(const at::Tensor& tensor) {
  return sharded_meta(tensor)->sharding();
}

// For the local part of `self`, in a type that its dtype can be rounded from.
at::Tensor uniform_for(const at::Tensor& self, Draws& draws, double from, double to);
at::Tensor normal_for(const at::Tensor& self, Draws& draws, double mean, double deviation);
/// In (0, 1).
at::Tensor inside_for(const at::Tensor& self, Draws& draws);
/// Whole numbers in [from, from + count); a count of 0 stands for 2^64.
at::Tensor between(const at::Tensor& self, Draws& draws, int64_t from, uint64_t count);
/// One past the largest whole number that random_() may give a type.
uint64_t random_limit(at::ScalarType dtype);
/// In [0, 1) in double: 2^-24 is too coarse for rare events.
at::Tensor chances_for(const Sharding& sharding, Draws& draws);

/// A sharded tensor around values drawn for `like`'s placement, Partial axes replicated.
at::Tensor sharded_like(const at::Tensor& like, const at::Tensor& values);

/// Writes drawn values into a sharded tensor. Ranks draw the same for a Partial one, which all but
/// sums, products and exclusive ors reduce to itself; there the first rank's counts.
void write_drawn(const at::Tensor& self, const at::Tensor& values);

}  // namespace tessera::dtensor
