#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "tessera/program/tensor_meta.h"
#include "tessera/sharding/sharding.h"

/// Arithmetic on sizes that may be symbolic, and the metadata of local tensors.
namespace tessera::partition {

/// The hint of a size; every size of a program that was assigned shardings has one.
int64_t hint_of(const program::Size& size);
std::vector<int64_t> hints_of(std::span<const program::Size> sizes);

program::Size multiply(const program::Size& a, const program::Size& b);

/// The share of `whole` that `part` is of its hint, reduced: 2 of 8 is 1/4.
struct Share {
  int64_t numerator = 1;
  int64_t denominator = 1;
  bool is_one() const { return numerator == 1 && denominator == 1; }
};
Share share_of(int64_t part, int64_t whole);

/// `part` of a size whose hint is `whole.hint()`: the number itself if the size is one, else the
/// same share of the expression. Part 2 of s0 with hint 8 is s0//4.
program::Size part_of(const program::Size& whole, int64_t part);

/// Row-major.
std::vector<program::Size> dense_strides(std::span<const program::Size> sizes);

/// What a rank holds of a tensor. The mesh of `sharding` is seen from that rank, and its shape is
/// that of the hints. Strides stay those of the file where nothing is sharded, else they are dense
/// in the order of the file's.
program::TensorMeta local_meta(const program::TensorMeta& global, const Sharding& sharding);

/// True if some axis of several ranks shards the tensor.
bool is_sharded(const Sharding& sharding);

}  // namespace tessera::partition
