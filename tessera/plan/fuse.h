#pragma once

#include "tessera/plan/search.h"

namespace tessera::plan {

/// Merges neighbouring steps of one kind into one step over the flattened group where the cost
/// model says that this is cheaper: the optimal partition of the path into runs. The search has
/// already merged communicating steps (except all_to_alls); this is for local steps, which always
/// merge, and for paths that were not searched.
///
///   slice dp, slice tp   ->  slice over dp x tp
Path fuse(const Problem& problem, const Path& path);

}  // namespace tessera::plan
