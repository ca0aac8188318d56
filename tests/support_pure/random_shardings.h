#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "tessera/mesh/device_mesh.h"
#include "tessera/sharding/sharding.h"
#include "tests/support_pure/property.h"

/// Random meshes, shapes and shardings for property tests, with the awkward cases common: axes of
/// size 1, dims of size 0 and 1, dims that no axis divides, several axes on one dim.
namespace tessera::test {

/// 1 to `max_axes` axes of 1 to 5 ranks, at most `max_ranks` in all; ranks 0..n-1, seen from
/// nowhere.
DeviceMesh random_mesh(Rng& rng, int max_axes = 4, int max_ranks = 24);

/// The same axes over other ranks: out of order, some left out.
DeviceMesh with_random_ranks(Rng& rng, const DeviceMesh& mesh);

/// 0 to `max_dims` dims of 0 to 13, most of them small, at most `max_numel` elements.
std::vector<int64_t> random_shape(Rng& rng, int max_dims = 5, int64_t max_numel = 600);

/// What may occur beside Replicate and Shard.
struct RandomOptions {
  bool partial = true;
  bool strided = true;
  bool ragged = true;
  bool order = true;    ///< axes shard a dim in any order
  bool stride = false;  ///< dims nest in any order, some expanded (stride 0)
  bool dtype = false;
};

Sharding random_sharding(Rng& rng, const DeviceMesh& mesh, const std::vector<int64_t>& shape,
                         const RandomOptions& options = {});

/// Another sharding of the same tensor on the same mesh, to redistribute to.
Sharding random_sharding_like(Rng& rng, const Sharding& sharding,
                              const RandomOptions& options = {});

Coordinate random_coordinate(Rng& rng, const DeviceMesh& mesh);

/// In the order of mesh.ranks().
std::vector<Coordinate> all_coordinates(const DeviceMesh& mesh);

}  // namespace tessera::test
