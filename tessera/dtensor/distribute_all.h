#pragma once

#include <ATen/core/Tensor.h>

#include <span>
#include <vector>

#include "tessera/dtensor/dtensor.h"

namespace tessera::dtensor {

/// distribute_tensor of several plain tensors without history, all with the same placements. They
/// share messages (buckets.h), but each result has memory of its own. Until it returns, the
/// received buckets are in memory too: call it for some tensors at a time.
std::vector<at::Tensor> distribute_all(std::span<const at::Tensor> fulls, const DeviceMesh& mesh,
                                       const std::vector<Placement>& placements,
                                       const DistributeOptions& options);

}  // namespace tessera::dtensor
