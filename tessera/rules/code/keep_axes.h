#pragma once

#include <functional>
#include <optional>
#include <vector>

#include "tessera/base/errors.h"
#include "tessera/rules/rule.h"

/// For rules of one tensor where what an axis does to the result depends on the other axes.
namespace tessera::rules {

using MaybeResults = std::optional<std::vector<std::vector<Placement>>>;
/// The results' placements if the operand is placed like this; nullopt if that cannot be said.
using PlaceResults = std::function<MaybeResults(const Sharding& at)>;

/// The operand as it is or, if that is not possible, with the fewest sharding axes given up.
/// Partial axes stay.
std::vector<JointRow> keep_axes(const Sharding& self, const PlaceResults& place);

}  // namespace tessera::rules
