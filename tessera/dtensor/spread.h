#pragma once

#include <ATen/core/Tensor.h>

#include "tessera/sharding/sharding.h"

namespace tessera::dtensor {

/// This rank's part of `sharding` of the tensor that the mesh's rank number `source` holds; the
/// others' data does not matter. Each rank is sent its share once; replicated axes gather the
/// shares, which costs a broadcast no more than twice the tensor.
at::Tensor scatter_from(const at::Tensor& full, int source, const Sharding& sharding);

/// Throws, on every rank, if ranks that should hold the same part hold different values.
void check_replicas(const at::Tensor& local, const Sharding& sharding);

}  // namespace tessera::dtensor
