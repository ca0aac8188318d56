#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/TensorOptions.h>

#include <vector>

#include "tessera/base/api.h"
#include "tessera/mesh/device_mesh.h"
#include "tessera/sharding/placement.h"

/// Creates sharded tensors from a global shape. Each rank creates only its part, without
/// communication; the full tensor is never materialized.
///
///   auto w = tessera::zeros({50257, 4096}, mesh, {Replicate(), Shard(0)});
///   auto b = tessera::randn({4096}, mesh, {}, at::kBFloat16);   // no placements: replicated
///
/// Must be called identically on every rank of the mesh. `options` may set dtype and requires_grad;
/// the device is the mesh's. Partial placements are rejected.
///
/// For tensors like another one use libtorch's functions: at::zeros_like(x), x.new_full(...).
namespace tessera {

using Placements = std::vector<Placement>;

TESSERA_API at::Tensor empty(at::IntArrayRef shape, const DeviceMesh& mesh,
                             const Placements& placements = {},
                             const at::TensorOptions& options = {});
TESSERA_API at::Tensor zeros(at::IntArrayRef shape, const DeviceMesh& mesh,
                             const Placements& placements = {},
                             const at::TensorOptions& options = {});
TESSERA_API at::Tensor ones(at::IntArrayRef shape, const DeviceMesh& mesh,
                            const Placements& placements = {},
                            const at::TensorOptions& options = {});
/// The dtype defaults to that of `value`.
TESSERA_API at::Tensor full(at::IntArrayRef shape, const at::Scalar& value, const DeviceMesh& mesh,
                            const Placements& placements = {},
                            const at::TensorOptions& options = {});

/// Uniform over [0, 1). Random values depend on the seed and the element's global index, not on the
/// placements or the number of ranks.
TESSERA_API at::Tensor rand(at::IntArrayRef shape, const DeviceMesh& mesh,
                            const Placements& placements = {},
                            const at::TensorOptions& options = {});
/// Standard normal.
TESSERA_API at::Tensor randn(at::IntArrayRef shape, const DeviceMesh& mesh,
                             const Placements& placements = {},
                             const at::TensorOptions& options = {});

/// start, start + step, ... below end. The dtype is int64 if all three are integers.
TESSERA_API at::Tensor arange(const at::Scalar& start, const at::Scalar& end,
                              const at::Scalar& step, const DeviceMesh& mesh,
                              const Placements& placements = {},
                              const at::TensorOptions& options = {});
TESSERA_API at::Tensor arange(const at::Scalar& end, const DeviceMesh& mesh,
                              const Placements& placements = {},
                              const at::TensorOptions& options = {});

/// Ones where the row index equals the column index.
TESSERA_API at::Tensor eye(int64_t rows, int64_t columns, const DeviceMesh& mesh,
                           const Placements& placements = {},
                           const at::TensorOptions& options = {});
TESSERA_API at::Tensor eye(int64_t n, const DeviceMesh& mesh, const Placements& placements = {},
                           const at::TensorOptions& options = {});

}  // namespace tessera
