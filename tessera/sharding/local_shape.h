#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "tessera/base/api.h"
#include "tessera/sharding/sharding.h"

/// The part of each dim that a rank holds: a list of intervals of global indexes, ascending,
/// concatenated in the local tensor:
///
///   S0 of [10] over 4             [0,3) [3,6) [6,9) [9,10)
///   SS0(2) of [10] over 4         [0,2)+[5,7)   [2,4)+[7,9)   [4,5)+[9,10)   nothing
///   S0,S0 of [10] over 2x2        [0,3) [3,5) [5,8) [8,10)
namespace tessera {

struct TESSERA_API Interval {
  int64_t begin = 0;
  int64_t end = 0;
  int64_t size() const { return end - begin; }
  bool operator==(const Interval&) const = default;
};

/// Piece `index` of `count` of n elements, split as by torch.chunk: ceil(n/count) each, then the
/// rest, then empty pieces at n.
TESSERA_API Interval chunk_interval(int64_t n, int64_t count, int64_t index);

/// The part of `dim` of the rank at `coordinate`, without empty intervals; adjacent ones are
/// merged. Here and below an invalid coordinate throws InvalidArgument.
TESSERA_API std::vector<Interval> held_intervals(const Sharding& sharding, int dim,
                                                 std::span<const int> coordinate);

TESSERA_API std::vector<int64_t> local_shape(const Sharding& sharding,
                                             std::span<const int> coordinate);
TESSERA_API int64_t local_numel(const Sharding& sharding, std::span<const int> coordinate);
/// The first global index held of each dim; the dim's size if nothing is held.
TESSERA_API std::vector<int64_t> global_offset(const Sharding& sharding,
                                               std::span<const int> coordinate);

/// Strides of a dense local tensor with the dim order of the global strides; a global stride of 0
/// (an expanded dim) stays 0.
TESSERA_API std::vector<int64_t> local_stride(std::span<const int64_t> local_shape,
                                              std::span<const int64_t> global_stride);

/// The largest part of each dim on any rank.
TESSERA_API std::vector<int64_t> max_local_shape(const Sharding& sharding);

/// The largest number of elements on any rank.
TESSERA_API int64_t max_local_numel(const Sharding& sharding);

}  // namespace tessera
