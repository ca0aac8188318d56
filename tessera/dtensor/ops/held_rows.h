#pragma once

#include <ATen/core/Tensor.h>

#include "tessera/sharding/sharding.h"

namespace tessera::dtensor {

constexpr int64_t kElsewhere = -1;

/// Converts global row numbers along a sharded dim of `table` to this rank's; rows of other ranks
/// become `elsewhere`. A row is what one index selects. For any sharding: a strided part is several
/// intervals, side by side in the local tensor.
///
///   10 rows S0 over 4 ranks, index [0, 4, 9]     rank 1, which holds 3 to 5:  [-1, 1, -1]
at::Tensor local_rows(const at::Tensor& index, const Sharding& table, int64_t dim,
                      int64_t elsewhere = kElsewhere);

}  // namespace tessera::dtensor
