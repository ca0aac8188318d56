#pragma once

#include "tessera/plan/search.h"

namespace tessera::plan {

/// Merges neighbouring steps of one kind into one step over the flattened group, where the machine
/// says that this is cheaper: the best way to part the path into runs. The search has merged what
/// communicates already (but for all_to_alls); this is for local steps, which always merge, and for
/// paths that no search made.
///
///   slice dp, slice tp   ->  slice over dp x tp
Path fuse(const Problem& problem, const Path& path);

}  // namespace tessera::plan
