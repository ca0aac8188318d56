#pragma once

#include <cstdint>
#include <string>

#include "tessera/plan/plan.h"

/// Runs a plan on integers, for all ranks of its meshes at once, the slow and obvious way. Of the
/// library it uses `held_intervals` only.
///
/// Every element of the global tensor has a value; under a partial placement every rank has an
/// addend of it instead. A step gives each rank its new part from nothing but the parts of the
/// ranks in its group (itself alone in a local step), and fails where it finds something missing:
///
///   slice             an element that is not the rank's own
///   all_gather, ...   an element that no rank of the group holds
///   all_reduce, ...   an addend that a member of the group lacks
///   avg               a sum that does not divide
///
/// or where the step says one thing in its move and axes and another in its shardings.
namespace tessera::test {

/// "" if the plan takes every rank from its part under plan.from to its part under plan.to; else
/// what went wrong, and where.
std::string replay(const plan::Plan& plan, uint64_t seed);

/// True if every rank holds the same elements in the same order under both, and is partial in the
/// same way: the two differ in name only.
bool same_parts(const Sharding& a, const Sharding& b);

}  // namespace tessera::test
