#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "tessera/checkpoint/stored/stored_state.h"

namespace tessera::cli {

struct EntryDifference {
  std::string name;
  std::string what;  ///< "only in the first", "f32 8x4 and f32 8x6", "elements differ by up to 0.5"
};

/// What two checkpoints do not have in common. Elements that differ by at most `tolerance` are
/// equal, and so are two NaN. Tensors are read piece by piece, some mebibytes at a time.
/// `on_progress`: bytes of the first checkpoint's tensors that were compared, of all.
std::vector<EntryDifference> compare(
    checkpoint::StoredState& a, checkpoint::StoredState& b, double tolerance,
    const std::function<void(uint64_t bytes, uint64_t total)>& on_progress);

}  // namespace tessera::cli
