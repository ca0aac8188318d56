#pragma once

#include <optional>
#include <span>
#include <vector>

#include "tessera/sharding/sharding.h"

/// What becomes of a sharding when a tensor is viewed in another shape, without moving anything.
///
///   8x6 -> 48, even                S0 -> S0          S1 over 2 -> SS0(8): a piece of each row
///   5x6 -> 30, uneven over 2       S0 -> S0[18,12]
///   48 -> 8x6                      SS0(8) -> S1
///
/// Even cuts: every dim is written as a product of factors, some of which belong to an axis; the
/// new dims share the same factors out anew. Uneven cuts: the table of what each rank holds is
/// carried over, in units of the new dim.
namespace tessera::rules {

/// The placements of the view if axes cut its dims in `order` (all axes, first cut first), in which
/// they cut `from` too; nullopt if some axis cannot be kept.
std::optional<std::vector<Placement>> reshape_placements(const Sharding& from,
                                                         std::span<const int64_t> shape,
                                                         std::vector<int> order);

/// A shape with -1 worked out.
std::vector<int64_t> complete_shape(std::vector<int64_t> shape, int64_t numel);

}  // namespace tessera::rules
