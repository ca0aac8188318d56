#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/TensorOptions.h>

#include <vector>

#include "tessera/mesh/device_mesh.h"
#include "tessera/sharding/placement.h"

/// New sharded tensors from their global shape. Each rank makes its own part and nothing is sent;
/// the full tensor exists nowhere.
///
///   auto w = tessera::zeros({50257, 4096}, mesh, {Replicate(), Shard(0)});
///   auto b = tessera::randn({4096}, mesh, {}, at::kBFloat16);   // no placements: replicated
///
/// Every rank of the mesh makes the same call. `options` may give dtype and requires_grad; the
/// device is the mesh's. Partial placements are refused: a value cannot be un-reduced by request.
///
/// Tensors like another one come from libtorch's own functions: at::zeros_like(x), x.new_full(...).
namespace tessera {

using Placements = std::vector<Placement>;

at::Tensor empty(at::IntArrayRef shape, const DeviceMesh& mesh, const Placements& placements = {},
                 const at::TensorOptions& options = {});
at::Tensor zeros(at::IntArrayRef shape, const DeviceMesh& mesh, const Placements& placements = {},
                 const at::TensorOptions& options = {});
at::Tensor ones(at::IntArrayRef shape, const DeviceMesh& mesh, const Placements& placements = {},
                const at::TensorOptions& options = {});
/// The dtype is the value's unless given.
at::Tensor full(at::IntArrayRef shape, const at::Scalar& value, const DeviceMesh& mesh,
                const Placements& placements = {}, const at::TensorOptions& options = {});

/// Uniform over [0, 1). Random values hang on the seed and the element's place in the global
/// tensor, not on the placements or the number of ranks.
at::Tensor rand(at::IntArrayRef shape, const DeviceMesh& mesh, const Placements& placements = {},
                const at::TensorOptions& options = {});
/// Standard normal.
at::Tensor randn(at::IntArrayRef shape, const DeviceMesh& mesh, const Placements& placements = {},
                 const at::TensorOptions& options = {});

/// start, start + step, ... below end. The dtype is int64 if all three are integers.
at::Tensor arange(const at::Scalar& start, const at::Scalar& end, const at::Scalar& step,
                  const DeviceMesh& mesh, const Placements& placements = {},
                  const at::TensorOptions& options = {});
at::Tensor arange(const at::Scalar& end, const DeviceMesh& mesh, const Placements& placements = {},
                  const at::TensorOptions& options = {});

/// Ones where the row's number is the column's.
at::Tensor eye(int64_t rows, int64_t columns, const DeviceMesh& mesh,
               const Placements& placements = {}, const at::TensorOptions& options = {});
at::Tensor eye(int64_t n, const DeviceMesh& mesh, const Placements& placements = {},
               const at::TensorOptions& options = {});

}  // namespace tessera
