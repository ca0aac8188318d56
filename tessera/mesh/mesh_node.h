#pragma once

#include "tessera/base/intern.h"
#include "tessera/mesh/device_mesh.h"

/// The representation of a DeviceMesh; included only by mesh/.
namespace tessera {

/// A mesh lists all its ranks, so a typo like dp=1000000000 must not exhaust the memory.
constexpr int64_t kMaxRanks = int64_t{1} << 24;

struct DeviceMesh::Node {
  std::vector<MeshAxis> axes;
  std::vector<int> ranks;  // row-major
  std::string device = "cpu";
  std::optional<int> my_rank;
  std::shared_ptr<const World> world;
  std::optional<Coordinate> my_coordinate;  // derived from my_rank
  uint64_t number = 0;                      // of this object (per_mesh.h), not of its value

  size_t hash() const;
  bool operator==(const Node& other) const;
  void check() const;  // throws InvalidArgument
  void locate_me() { my_coordinate = my_rank ? coordinate_of(*my_rank) : std::nullopt; }
  const MeshAxis& axis_at(int axis) const;
  int64_t index_of(std::span<const int> coordinate) const;
  Coordinate coordinate_at(int64_t index) const;
  std::optional<Coordinate> coordinate_of(int rank) const;
  std::string to_text() const;
};

/// The mapping of a derived mesh to its root: the rank at a coordinate is
///   root->ranks[offset + sum over axes, over the axis's modes, of digit * stride]
/// where an axis of several modes (after flatten) counts through them with the last one fastest,
/// and one without modes has size 1.
struct DeviceMesh::Lineage {
  struct Mode {
    int size;
    int64_t stride;
  };

  std::shared_ptr<const Node> root;
  int64_t offset = 0;
  std::vector<std::vector<Mode>> modes;  // by axis

  int64_t root_index(size_t axis, int coordinate) const;
};

InternTable<DeviceMesh::Node>& mesh_table();

/// [A-Za-z_][A-Za-z0-9_./-]*: what the text form of a mesh supports.
bool is_axis_name(std::string_view name);

}  // namespace tessera
