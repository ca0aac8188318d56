#pragma once

#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>

#include "tessera/sharding/sharding.h"

/// Random numbers by global index. A generator gives one key for each op; the numbers are a
/// function of the key and of an element's place in the global tensor, in row-major order. So a
/// tensor has the same values on one rank and on N, however it is placed, as long as the ranks'
/// generators are in the same state: seeded alike, and used alike since. Ranks that hold the same
/// elements are checked for it (same_generator.h).
namespace tessera::dtensor {

class Draws {
 public:
  /// Numbers of a key from `generator`, or from the default one of `device`: its state moves on by
  /// one when the first are drawn.
  Draws(const std::optional<at::Generator>& generator, c10::Device device);

  // Each call gives new numbers for this rank's part of `sharding`, as a dense plain tensor of
  // `dtype`, float or double; Partial axes count as replicated. Collective the first time after the
  // generators have been seeded.

  /// In [0, 1), multiples of 2^-bits; bits at most 24 in float, 53 in double.
  at::Tensor uniform(const Sharding& sharding, at::ScalarType dtype, int bits);
  /// In (0, 1): neither its logarithm nor that of what is left to one is infinite.
  at::Tensor inside(const Sharding& sharding, at::ScalarType dtype);
  /// Mean 0, deviation 1.
  at::Tensor normal(const Sharding& sharding, at::ScalarType dtype);
  /// 64 random bits each.
  at::Tensor bits(const Sharding& sharding);
  /// Whole numbers in [0, limit); 0 stands for 2^64. int64.
  at::Tensor below(const Sharding& sharding, uint64_t limit);

 private:
  uint64_t key_for(const Sharding& sharding);

  at::Generator generator_;  ///< none on the meta device
  c10::Device device_;
  std::optional<uint64_t> key_;
  uint64_t stream_ = 0;
};

}  // namespace tessera::dtensor
