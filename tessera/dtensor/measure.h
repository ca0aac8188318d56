#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "tessera/sharding/sharding.h"

namespace tessera::dtensor {

/// The sharding of which every rank's `local` is its part: the ranks tell each other their sizes
/// (one small all_gather over the mesh). Parts as torch.chunk cuts them give plain shards, others
/// ragged ones. The global tensor's dims lie in memory in the order of the first rank's. Throws on
/// every rank alike where the parts fit no global tensor.
Sharding measure(const at::Tensor& local, const DeviceMesh& mesh,
                 std::vector<Placement> placements);

/// The same without a message: every part is taken to be as large as this one.
Sharding assume_even(const at::Tensor& local, const DeviceMesh& mesh,
                     std::vector<Placement> placements);

/// Throws, on every rank, if ranks bring tensors of different types, sizes that should be the same,
/// orders in memory, or some with a gradient and some without. One more small all_gather.
void check_metadata(const at::Tensor& local, const DeviceMesh& mesh);

}  // namespace tessera::dtensor
