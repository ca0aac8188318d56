#pragma once

#include "tessera/sharding/sharding.h"

/// The representation of a Sharding; included only by sharding/.
namespace tessera {

struct Sharding::Node {
  DeviceMesh mesh;
  std::vector<Placement> placements;
  std::vector<std::vector<int>> axes_of_dim;  // by tensor dim, outermost first
  std::vector<int64_t> shape;
  std::vector<int64_t> stride;
  DType dtype = DType::f32;

  // Derived from the above for the mesh's own rank.
  std::vector<int64_t> local_shape;
  std::vector<int64_t> local_stride;
  std::vector<int64_t> local_offset;
  int64_t numel = 1;
  int64_t local_numel = 1;

  size_t hash() const;
  bool operator==(const Node& other) const;
  std::vector<int> order() const;
  bool has_default_order() const;
};

}  // namespace tessera
