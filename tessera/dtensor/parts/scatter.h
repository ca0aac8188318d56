#pragma once

#include <ATen/core/Tensor.h>

#include "tessera/sharding/sharding.h"

namespace tessera::dtensor {

/// This rank's part of the tensor that rank `source` of the mesh holds; the data of other ranks is
/// ignored. Each rank receives its share once, and replicated axes all_gather the shares, so a
/// broadcast transfers at most twice the tensor.
at::Tensor scatter_from(const at::Tensor& full, int source, const Sharding& sharding);

/// Rank number `source` of the mesh, as a mesh of one rank.
DeviceMesh mesh_of_source(const DeviceMesh& mesh, int source);

/// Throws, on every rank, if ranks that should hold the same part hold different values.
void check_replicas(const at::Tensor& local, const Sharding& sharding);

}  // namespace tessera::dtensor
