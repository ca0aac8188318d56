#pragma once

#include <optional>
#include <span>
#include <vector>

#include "tessera/sharding/sharding.h"

/// The sharding of a reshaped view, without data movement.
///
///   8x6 -> 48, even                S0 -> S0          S1 over 2 -> SS0(8): a piece of each row
///   5x6 -> 30, uneven over 2       S0 -> S0[18,12]
///   48 -> 8x6                      SS0(8) -> S1
///
/// Even shards: every dim is a product of factors, some of which belong to an axis; the new dims
/// regroup the same factors. Uneven shards: the table of part sizes is converted to units of the
/// new dim.
namespace tessera::rules {

/// The placements of the view if axes shard its dims in `order` (all axes, outermost first), which
/// must also be the order of `from`; nullopt if some axis cannot be kept.
std::optional<std::vector<Placement>> reshape_placements(const Sharding& from,
                                                         std::span<const int64_t> shape,
                                                         std::vector<int> order);

/// The shape with -1 resolved.
std::vector<int64_t> complete_shape(std::vector<int64_t> shape, int64_t numel);

}  // namespace tessera::rules
