#pragma once

#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>

#include "tessera/sharding/sharding.h"

/// Random numbers by global index. A generator provides one key per op; each number is a function
/// of the key and of the element's row-major index in the global tensor. So a tensor has the same
/// values on one rank and on N, whatever its placements, provided that the ranks' generators are in
/// the same state: same seed, same use since. Ranks that hold the same elements are checked
/// (same_generator.h). After manual_seed generators of the CPU and of a GPU give the same keys, as
/// long as only sharded tensors draw from them.
namespace tessera::dtensor {

class Draws {
 public:
  /// Draws with a key from `generator`, or from the default generator of `device`, whose state
  /// advances by one step at the first draw.
  Draws(const std::optional<at::Generator>& generator, c10::Device device);

  // Each call returns new numbers for this rank's part of `sharding`, as a dense plain tensor of
  // `dtype`, float or double; Partial axes count as replicated. Collective at the first call after
  // the generators have been seeded.

  /// In [0, 1), multiples of 2^-bits; bits at most 24 for float, 53 for double.
  at::Tensor uniform(const Sharding& sharding, at::ScalarType dtype, int bits);
  /// In (0, 1), so that log(x) and log(1 - x) are finite.
  at::Tensor inside(const Sharding& sharding, at::ScalarType dtype);
  /// Mean 0, standard deviation 1.
  at::Tensor normal(const Sharding& sharding, at::ScalarType dtype);
  /// 64 random bits per element.
  at::Tensor bits(const Sharding& sharding);
  /// int64 integers in [0, limit); a limit of 0 means 2^64.
  at::Tensor below(const Sharding& sharding, uint64_t limit);

 private:
  uint64_t key_for(const Sharding& sharding);

  at::Generator generator_;  ///< none on the meta device
  c10::Device device_;
  std::optional<uint64_t> key_;
  uint64_t stream_ = 0;
};

}  // namespace tessera::dtensor
