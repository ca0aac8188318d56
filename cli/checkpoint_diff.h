#pragma once

#include <ATen/core/Tensor.h>

#include <string>
#include <vector>

#include "tessera/checkpoint/stored_state.h"

namespace tessera::cli {

struct EntryDifference {
  std::string name;
  std::string what;  ///< "only in the first", "f32 8x4 and f32 8x6", "elements differ by up to 0.5"
};

/// What two checkpoints do not have in common. Elements that differ by at most `tolerance` are
/// equal, and so are two NaN.
std::vector<EntryDifference> compare(checkpoint::StoredState& a, checkpoint::StoredState& b,
                                     double tolerance);

/// All of a stored tensor: the mapped file where it is stored in one piece, else put together.
at::Tensor whole_tensor(checkpoint::StoredState& stored, const std::string& name,
                        const dcp::TensorEntry& entry);

}  // namespace tessera::cli
