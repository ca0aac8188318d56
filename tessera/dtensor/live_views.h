#pragma once

#include "tessera/dtensor/sharded_tensor.h"

/// Views of a tensor that the memory of its local tensor does not tell of.
namespace tessera::dtensor {

/// Whether a gathered view (view_origin.h) exists of this tensor, or of another one with the same
/// memory.
bool has_gathered_views(const ShardedMeta& base);

}  // namespace tessera::dtensor
