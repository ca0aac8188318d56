#pragma once

#include <string>

#include "tessera/dtensor/dtensor.h"

namespace tessera::test {

/// distribute_tensor with placements as text: spread(x, mesh, "S0,R"). Collective.
inline at::Tensor spread(const at::Tensor& full, const DeviceMesh& mesh,
                         const std::string& placements) {
  return distribute_tensor(full, mesh, parse_placements(placements));
}

}  // namespace tessera::test
