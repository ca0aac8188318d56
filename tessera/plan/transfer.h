#pragma once

#include "tessera/plan/plan.h"

namespace tessera::plan {

/// The steps from one mesh to another: partials are reduced on the source's mesh, one transfer
/// sends the parts to the ranks that need them, partials are created on the target's mesh. Empty if
/// every rank already holds its part (dp=2,tp=2 : S0,S0 and world=4 : S0).
std::vector<Step> steps_across_meshes(const Sharding& from, const Sharding& to,
                                      const cost::Machine& machine);

/// The steps on one mesh, between canonical shardings that differ in placements only; plan.cpp.
std::vector<Step> steps_on_one_mesh(const Sharding& from, const Sharding& to,
                                    const cost::Machine& machine);

}  // namespace tessera::plan
