#pragma once

#include <functional>
#include <optional>
#include <vector>

#include "tessera/base/errors.h"
#include "tessera/rules/rule.h"

/// For single-tensor rules in which the effect of an axis on the result depends on the other axes.
namespace tessera::rules {

using MaybeResults = std::optional<std::vector<std::vector<Placement>>>;
/// The results' placements for an operand with this sharding; nullopt if they cannot be expressed.
using PlaceResults = std::function<MaybeResults(const Sharding& at)>;

/// The operand's sharding unchanged or, if that is not possible, with the fewest axes gathered.
/// Partial axes stay.
std::vector<JointRow> keep_axes(const Sharding& self, const PlaceResults& place);

}  // namespace tessera::rules
