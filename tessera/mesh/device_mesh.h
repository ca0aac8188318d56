#pragma once

#include <cstdint>
#include <initializer_list>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "tessera/base/api.h"

/// A device mesh: ranks arranged on named axes.
///
///   dp=2,tp=4            axis tp ->
///                        0 1 2 3
///                 dp |   4 5 6 7        rank 6 is at dp=1, tp=2
///                    v
///
/// A DeviceMesh is an immutable value: cheap to copy, compare and hash. It knows its ranks, which
/// of them is the own one, and their World. A mesh without a world can be used for planning, not
/// for communication. Equality compares axes, ranks, device, own rank and world, not how the mesh
/// was derived. The text contains axes, ranks and device, so for a mesh without an own rank
/// parse(to_text()) is the same mesh.
namespace tessera {

/// The ranks that a mesh was created over; implemented by comm (processes, threads, fake). A mesh
/// keeps its world alive.
class TESSERA_API World {
 public:
  virtual ~World() = default;
  virtual int rank() const = 0;  ///< the own rank
  virtual int size() const = 0;
};

struct TESSERA_API MeshAxis {
  std::string name;
  int size = 1;
  bool operator==(const MeshAxis&) const = default;
};

/// One integer per axis.
using Coordinate = std::vector<int>;

class TESSERA_API DeviceMesh {
 public:
  struct Node;     // the interned value
  struct Lineage;  // the root mesh and the strides of the axes in it

  /// Undefined. Most calls on it are errors; see `defined()`.
  DeviceMesh() = default;

  /// Ranks 0..n-1 in row-major order.
  explicit DeviceMesh(std::vector<MeshAxis> axes, std::string device = "cpu");

  /// Any distinct ranks, listed in row-major order of the axes.
  DeviceMesh(std::vector<MeshAxis> axes, std::vector<int> ranks, std::string device = "cpu");
  DeviceMesh(std::vector<MeshAxis> axes, std::initializer_list<int> ranks,
             std::string device = "cpu")
      : DeviceMesh(std::move(axes), std::vector<int>(ranks), std::move(device)) {}

  /// "dp=2,tp=4"; "dp=2,tp=2@0,2,4-5" lists ranks that are not 0..n-1; "cuda:dp=8" names a device.
  static DeviceMesh parse(std::string_view text);
  std::string to_text() const;

  bool defined() const { return node_ != nullptr; }
  int ndim() const;
  int size() const;  ///< number of ranks
  int size(int axis) const;
  std::span<const MeshAxis> axes() const;
  const std::string& axis_name(int axis) const;
  /// Index of an axis; the error for an unknown name lists the axes.
  int axis(std::string_view name) const;
  bool has_axis(std::string_view name) const;
  /// "cpu", "cuda", "meta".
  const std::string& device() const;

  /// All ranks in row-major order.
  std::span<const int> ranks() const;
  int rank_at(std::span<const int> coordinate) const;
  int rank_at(std::initializer_list<int> coordinate) const;
  /// nullopt for a rank outside the mesh.
  std::optional<Coordinate> coordinate_of(int rank) const;

  /// The own rank, if any: the world's rank, or the one given by `with_own_rank`.
  std::optional<int> my_rank() const;
  /// The own coordinate; nullopt for a rank outside the mesh or a mesh without an own rank.
  const std::optional<Coordinate>& my_coordinate() const;
  bool contains_me() const { return my_coordinate().has_value(); }
  /// The own coordinate on one axis; throws outside of the mesh.
  int local_rank(int axis) const;
  int local_rank(std::string_view name) const;

  /// The same mesh without a world, with `rank` as the own rank.
  DeviceMesh with_own_rank(int rank) const;
  /// The same mesh in `world`, with its rank as the own rank.
  DeviceMesh in_world(std::shared_ptr<const World> world) const;
  const std::shared_ptr<const World>& world() const;

  /// The mesh of the given axes, in the given order, through the own coordinate on the others
  /// (coordinate 0 if there is none).
  DeviceMesh submesh(std::span<const std::string> names) const;
  DeviceMesh operator[](std::string_view name) const;
  DeviceMesh operator[](std::initializer_list<std::string> names) const;
  /// All meshes of the given axes, one per coordinate on the others.
  std::vector<DeviceMesh> all_submeshes(std::span<const std::string> names) const;

  /// Merges the given axes, in the given order, into one axis at the position of the first of them.
  ///   dp=2,tp=4  flatten({"dp","tp"}, "world")  ->  world=8
  DeviceMesh flatten(std::span<const std::string> names, std::string new_name) const;
  DeviceMesh flatten(std::initializer_list<std::string> names, std::string new_name) const;
  DeviceMesh flatten(std::string new_name) const;  ///< all axes

  /// Splits one axis into several, outermost first; the sizes must multiply to the axis's size.
  DeviceMesh unflatten(std::string_view name, std::vector<MeshAxis> into) const;

  /// The axes of several submeshes of one root combined: concatenate({root["dp"], root["tp"]}). All
  /// must contain the own rank, and no axis of the root may appear twice.
  static DeviceMesh concatenate(std::span<const DeviceMesh> parts);
  static DeviceMesh concatenate(std::initializer_list<DeviceMesh> parts);

  /// The ranks that share all coordinates with `rank` except on `axes` (row-major in that order).
  std::vector<int> group(std::span<const int> axes, int rank) const;
  std::vector<int> group(std::initializer_list<int> axes, int rank) const;
  /// All such groups; each rank is in exactly one.
  std::vector<std::vector<int>> groups(std::span<const int> axes) const;
  std::vector<std::vector<int>> groups(std::initializer_list<int> axes) const;
  std::vector<std::vector<int>> groups(std::string_view axis_name) const;

  bool operator==(const DeviceMesh& other) const { return node_ == other.node_; }
  size_t hash() const { return std::hash<const void*>()(node_.get()); }
  const Node* id() const { return node_.get(); }

 private:
  DeviceMesh(std::shared_ptr<const Node> node, std::shared_ptr<const Lineage> lineage);
  const Node& node() const;
  static DeviceMesh make(Node node, std::shared_ptr<const Lineage> lineage);
  std::shared_ptr<const Lineage> lineage() const;
  DeviceMesh from_lineage(Lineage lineage, std::vector<MeshAxis> axes) const;

  std::shared_ptr<const Node> node_;
  std::shared_ptr<const Lineage> lineage_;  // null: the mesh is its own root, row-major
};

/// Ranks 0..n-1 on the given axes; names default to "axis0", "axis1", ...
TESSERA_API DeviceMesh mesh_without_world(std::span<const int> sizes,
                                          std::span<const std::string> names = {},
                                          std::string device = "cpu");

}  // namespace tessera

template <>
struct std::hash<tessera::DeviceMesh> {
  size_t operator()(const tessera::DeviceMesh& mesh) const { return mesh.hash(); }
};
