#include "tessera/dtensor/by_mesh.h"

#include <algorithm>

#include "tessera/dtensor/tensor/sharded_tensor.h"

namespace tessera::dtensor {

std::vector<TensorsOfMesh> group_by_mesh(std::span<const at::Tensor> tensors) {
  std::vector<TensorsOfMesh> out;
  for (const at::Tensor& tensor : tensors) {
    const ShardedMeta* meta = sharded_meta(tensor);
    const DeviceMesh mesh = meta != nullptr ? meta->sharding().mesh() : DeviceMesh();
    auto at = std::ranges::find(out, mesh, &TensorsOfMesh::mesh);
    if (at == out.end()) at = out.insert(out.end(), {mesh, {}});
    at->tensors.push_back(tensor);
  }
  return out;
}

}  // namespace tessera::dtensor
