#pragma once

#include <span>
#include <vector>

#include "tessera/partition/rewrite/emitter.h"
#include "tessera/sharding/boxes.h"

namespace tessera::partition {

/// A part of a tensor that is to be put together: a value, and where its elements belong. Runs go
/// from the value to the whole.
struct Tile {
  program::ValueId value;
  Overlap place;
};

/// What `place` takes of `from`, as one tensor: slices, side by side where a dim has several runs.
program::ValueId take(Emitter& emit, program::ValueId from, const Overlap& place);

/// The tensor of shape `shape` (hints) that the tiles cover, each element once.
program::ValueId put_together(Emitter& emit, std::span<const Tile> tiles,
                              std::span<const int64_t> shape);

}  // namespace tessera::partition
