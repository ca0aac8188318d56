#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "tessera/base/api.h"
#include "tessera/base/dtype.h"
#include "tessera/mesh/device_mesh.h"
#include "tessera/sharding/placement.h"

/// The distribution of a global tensor: a mesh, one placement per axis, the order in which axes
/// shard a common dim, and the global shape, stride and dtype.
///
///   dp=2,tp=4 : S0,R : 8x16              rows over dp, a copy on each tp rank
///   dp=2,tp=2 : S0,S0 : 8x16             dp shards dim 0 first, tp shards each half
///   dp=2,tp=2 : S0#1,S0#0 : 8x16         tp shards dim 0 first (#0), dp shards each half (#1)
///   tp=4 : P(max) : 8x16 bf16            element type, f32 by default
///   tp=4 : S1 : 8x16 {1,8}               strides, row-major by default
///   tp=4 : R : scalar
///
/// Immutable and interned: copying increments a reference count; equality and hash compare a
/// pointer. What a rank holds is in local_shape.h and boxes.h.
namespace tessera {

struct TESSERA_API ShardingOptions {
  DType dtype = DType::f32;
  /// Global strides; row-major if empty.
  std::vector<int64_t> stride = {};
  /// The order in which axes shard a dim, outermost first. Axes left out follow in mesh order. Only
  /// the relative order of axes on one dim matters.
  std::vector<int> order = {};
};

class TESSERA_API Sharding {
 public:
  struct Node;

  Sharding() = default;  ///< undefined; see `defined()`

  /// Negative dims count from the end. Throws InvalidArgument if placements, shape, stride or order
  /// do not match each other or the mesh.
  Sharding(DeviceMesh mesh, std::vector<Placement> placements, std::vector<int64_t> shape,
           ShardingOptions options = {});

  static Sharding parse(std::string_view text);
  std::string to_text() const;
  /// Only the placements, with the order if it is not the default: "S0#1,S0#0".
  std::string placements_text() const;

  bool defined() const { return node_ != nullptr; }
  const DeviceMesh& mesh() const;
  std::span<const Placement> placements() const;
  const Placement& placement(int axis) const;
  std::span<const int64_t> shape() const;
  std::span<const int64_t> stride() const;
  DType dtype() const;
  int ndim() const;
  int64_t numel() const;

  /// The axes that shard a dim, outermost first.
  std::span<const int> axes_of_dim(int dim) const;
  /// All sharding axes, such that axes of one dim are in nesting order.
  std::vector<int> order() const;
  bool has_default_order() const;

  bool is_replicated() const;  ///< every axis
  bool has_partial() const;
  bool has_sharded() const;

  /// The shape of this rank's local tensor: of the mesh's own rank (the first rank if the mesh has
  /// none, all zeros outside of the mesh).
  std::span<const int64_t> local_shape() const;
  std::span<const int64_t> local_stride() const;
  int64_t local_numel() const;
  /// The global index of this rank's first element; the dim's size if its part of the dim is empty.
  std::span<const int64_t> local_offset() const;

  /// The same tensor with another placement on one axis, innermost on its dim.
  Sharding with(int axis, Placement placement) const;
  /// The same tensor, mesh and dtype with other placements, in the default order unless given.
  Sharding with_placements(std::vector<Placement> placements, std::vector<int> order = {}) const;
  Sharding with_dtype(DType dtype) const;
  Sharding with_mesh(DeviceMesh mesh) const;
  /// The same mesh and placements for another tensor.
  Sharding with_shape(std::vector<int64_t> shape, std::vector<int64_t> stride = {}) const;
  Sharding replicated() const;

  bool operator==(const Sharding& other) const { return node_ == other.node_; }
  size_t hash() const { return std::hash<const void*>()(node_.get()); }
  const Node* id() const { return node_.get(); }

 private:
  const Node& node() const;

  std::shared_ptr<const Node> node_;
};

/// The number of distinct shardings that exist; see CacheStats.
TESSERA_API size_t live_shardings();

}  // namespace tessera

template <>
struct std::hash<tessera::Sharding> {
  size_t operator()(const tessera::Sharding& s) const { return s.hash(); }
};
