#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "tessera/sharding/sharding.h"

/// What a rank holds of each dim. A rank's part of a dim is a list of intervals of global indexes,
/// ascending, side by side in the local tensor:
///
///   S0 of [10] over 4             [0,3) [3,6) [6,9) [9,10)
///   SS0(2) of [10] over 4         [0,2)+[5,7)   [2,4)+[7,9)   [4,5)+[9,10)   nothing
///   S0,S0 of [10] over 2x2        [0,3) [3,5) [5,8) [8,10)
namespace tessera {

struct Interval {
  int64_t begin = 0;
  int64_t end = 0;
  int64_t size() const { return end - begin; }
  bool operator==(const Interval&) const = default;
};

/// Piece `index` of `count` of n elements, as torch.chunk cuts: ceil(n/count) each, then the rest,
/// then empty pieces at n.
Interval chunk_interval(int64_t n, int64_t count, int64_t index);

/// The rank at `coordinate`'s part of `dim`, without empty intervals; adjacent ones are joined.
/// Here and below a coordinate that does not fit the mesh is an InvalidArgument.
std::vector<Interval> held_intervals(const Sharding& sharding, int dim,
                                     std::span<const int> coordinate);

std::vector<int64_t> local_shape(const Sharding& sharding, std::span<const int> coordinate);
int64_t local_numel(const Sharding& sharding, std::span<const int> coordinate);
/// First global index held of each dim; the dim's size where nothing is held.
std::vector<int64_t> global_offset(const Sharding& sharding, std::span<const int> coordinate);

/// Strides of a dense local tensor whose dims nest as the global strides say; a global stride of 0
/// (an expanded dim) stays 0.
std::vector<int64_t> local_stride(std::span<const int64_t> local_shape,
                                  std::span<const int64_t> global_stride);

/// The most that any rank holds of each dim.
std::vector<int64_t> max_local_shape(const Sharding& sharding);

/// The most elements that any rank holds.
int64_t max_local_numel(const Sharding& sharding);

/// True if every rank holds as much as any other, of every dim.
bool is_even(const Sharding& sharding);

}  // namespace tessera
