#pragma once

#include <string>

#include "tessera/dtensor/dtensor.h"

namespace tessera::test {

/// A full tensor cut as a text says: spread(x, mesh, "S0,R"). Collective, as distribute_tensor is.
inline at::Tensor spread(const at::Tensor& full, const DeviceMesh& mesh,
                         const std::string& placements) {
  return distribute_tensor(full, mesh, parse_placements(placements));
}

}  // namespace tessera::test
