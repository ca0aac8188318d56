#pragma once

#include <ATen/core/Tensor.h>

#include <span>
#include <vector>

#include "tessera/mesh/device_mesh.h"

namespace tessera::dtensor {

struct TensorsOfMesh {
  DeviceMesh mesh;  ///< undefined: plain tensors
  std::vector<at::Tensor> tensors;
};

/// The tensors of each mesh; meshes and tensors in the order in which they come first, so every
/// rank that passes the same list communicates in the same order.
///
///   [a on dp, b plain, c on dp]      {dp: a, c}, {none: b}
std::vector<TensorsOfMesh> group_by_mesh(std::span<const at::Tensor> tensors);

}  // namespace tessera::dtensor
