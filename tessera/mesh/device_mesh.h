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

/// A mesh: ranks laid out on named axes.
///
///   dp=2,tp=4            axis tp ->
///                        0 1 2 3
///                 dp |   4 5 6 7        rank 6 is at dp=1, tp=2
///                    v
///
/// A DeviceMesh is an immutable value: cheap to copy, compare and hash. It says which ranks there
/// are, which of them is "mine" and which World they live in. A mesh without a world is a mesh on
/// paper: good for planning, not for communicating. Equality looks at axes, ranks, device, own rank
/// and world; not at how the mesh was derived. Text holds axes, ranks and device, so for a mesh
/// seen from nowhere parse(to_text()) is the same mesh.
namespace tessera {

/// The ranks that a mesh was made over; comm implements it (processes, threads, fake). A mesh keeps
/// its world alive.
class World {
 public:
  virtual ~World() = default;
  virtual int rank() const = 0;  ///< the rank that holds this object
  virtual int size() const = 0;
};

struct MeshAxis {
  std::string name;
  int size = 1;
  bool operator==(const MeshAxis&) const = default;
};

/// One integer per axis.
using Coordinate = std::vector<int>;

class DeviceMesh {
 public:
  struct Node;     // the interned value
  struct Lineage;  // the root mesh and how the axes stride through it

  /// No mesh. Most calls on it are errors; `defined()` tells.
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
  /// Index of an axis; an error lists the names there are.
  int axis(std::string_view name) const;
  bool has_axis(std::string_view name) const;
  /// "cpu", "cuda", "meta".
  const std::string& device() const;

  /// All ranks in row-major order.
  std::span<const int> ranks() const;
  int rank_at(std::span<const int> coordinate) const;
  int rank_at(std::initializer_list<int> coordinate) const;
  /// None for a rank outside the mesh.
  std::optional<Coordinate> coordinate_of(int rank) const;

  /// The rank this mesh is seen from, if any: the world's rank, or the one `seen_from` gave.
  std::optional<int> my_rank() const;
  /// My place on the axes; empty optional for a rank outside the mesh or a mesh seen from nowhere.
  const std::optional<Coordinate>& my_coordinate() const;
  bool contains_me() const { return my_coordinate().has_value(); }
  /// My coordinate on one axis; an error if I am outside.
  int local_rank(int axis) const;
  int local_rank(std::string_view name) const;

  /// The same mesh on paper as `rank` sees it.
  DeviceMesh seen_from(int rank) const;
  /// The same mesh, living in `world` and seen from its rank.
  DeviceMesh in_world(std::shared_ptr<const World> world) const;
  const std::shared_ptr<const World>& world() const;

  /// The mesh of the given axes, in the given order, through my coordinate on the others (through
  /// coordinate 0 where I am outside or nowhere).
  DeviceMesh submesh(std::span<const std::string> names) const;
  DeviceMesh operator[](std::string_view name) const;
  DeviceMesh operator[](std::initializer_list<std::string> names) const;
  /// Every mesh of the given axes, one for each coordinate on the others.
  std::vector<DeviceMesh> all_submeshes(std::span<const std::string> names) const;

  /// The given axes, in the given order, become one axis in the place of the first of them.
  ///   dp=2,tp=4  flatten({"dp","tp"}, "world")  ->  world=8
  DeviceMesh flatten(std::span<const std::string> names, std::string new_name) const;
  DeviceMesh flatten(std::initializer_list<std::string> names, std::string new_name) const;
  DeviceMesh flatten(std::string new_name) const;  ///< all axes

  /// One axis becomes several, outermost first; the sizes must multiply to the axis's size.
  DeviceMesh unflatten(std::string_view name, std::vector<MeshAxis> into) const;

  /// The axes of several submeshes of one root side by side: concatenate({root["dp"], root["tp"]}).
  /// All must run through one rank (mine), and no axis of the root may appear twice.
  static DeviceMesh concatenate(std::span<const DeviceMesh> parts);
  static DeviceMesh concatenate(std::initializer_list<DeviceMesh> parts);

  /// The ranks that share all coordinates with `rank` except on `axes` (row-major in that order).
  std::vector<int> group(std::span<const int> axes, int rank) const;
  std::vector<int> group(std::initializer_list<int> axes, int rank) const;
  /// Every such group, each rank in exactly one.
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
DeviceMesh mesh_on_paper(std::span<const int> sizes, std::span<const std::string> names = {},
                         std::string device = "cpu");

}  // namespace tessera

template <>
struct std::hash<tessera::DeviceMesh> {
  size_t operator()(const tessera::DeviceMesh& mesh) const { return mesh.hash(); }
};
