#include "tessera/mesh/mesh_node.h"

#include <algorithm>
#include <set>

#include "tessera/base/errors.h"

namespace tessera {

InternTable<DeviceMesh::Node>& mesh_table() {
  // Never destroyed: handles in other static objects may outlive it otherwise.
  static auto* table = new InternTable<DeviceMesh::Node>();
  return *table;
}

bool is_axis_name(std::string_view name) {
  const auto is_letter = [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_';
  };
  const auto may_follow = [&](char c) {
    return is_letter(c) || (c >= '0' && c <= '9') || c == '-' || c == '.' || c == '/';
  };
  return !name.empty() && is_letter(name[0]) && std::ranges::all_of(name, may_follow);
}

namespace {

bool is_name(std::string_view name) {
  Scanner scanner(name);
  return scanner.accept_name() == name;
}

}  // namespace

size_t DeviceMesh::Node::hash() const {
  size_t h = std::hash<std::string>()(device);
  for (const auto& axis : axes) {
    h = hash_mix(h, std::hash<std::string>()(axis.name));
    h = hash_mix(h, static_cast<size_t>(axis.size));
  }
  for (int rank : ranks) h = hash_mix(h, static_cast<size_t>(rank));
  h = hash_mix(h, static_cast<size_t>(my_rank.value_or(-1)));
  return hash_mix(h, std::hash<const void*>()(world.get()));
}

bool DeviceMesh::Node::operator==(const Node& other) const {
  return axes == other.axes && ranks == other.ranks && device == other.device &&
         my_rank == other.my_rank && world == other.world;
}

void DeviceMesh::Node::check() const {
  require(!axes.empty(), "a mesh needs at least one axis");
  require(is_name(device), "\"", device, "\" is no kind of device; say cpu, cuda or meta");
  int64_t count = 1;
  std::set<std::string_view> names;
  for (const auto& axis : axes) {
    require(axis.size >= 1, "mesh axis ", axis.name, " has size ", axis.size, "; at least 1");
    require(is_axis_name(axis.name), "\"", axis.name,
            "\" cannot name a mesh axis; a name is like dp, tp_inner or mesh-0");
    require(names.insert(axis.name).second, "two mesh axes are called ", axis.name);
    count = std::min(count * axis.size, kMaxRanks + 1);
  }
  require(count <= kMaxRanks, "a mesh of more than ", kMaxRanks, " ranks");
  require(count == static_cast<int64_t>(ranks.size()), "the mesh axes hold ", count, " ranks but ",
          ranks.size(), " are listed");
  std::vector<int> sorted = ranks;
  std::ranges::sort(sorted);
  require(sorted.front() >= 0, "a mesh lists rank ", sorted.front());
  const auto twin = std::ranges::adjacent_find(sorted);
  require(twin == sorted.end(), "a mesh lists rank ", twin == sorted.end() ? 0 : *twin, " twice");
}

const MeshAxis& DeviceMesh::Node::axis_at(int axis) const {
  require(axis >= 0 && axis < static_cast<int>(axes.size()), "axis ", axis, " of mesh ", *this,
          ", which has ", axes.size(), " axes");
  return axes[static_cast<size_t>(axis)];
}

int64_t DeviceMesh::Node::index_of(std::span<const int> coordinate) const {
  require(coordinate.size() == axes.size(), "a coordinate of ", coordinate.size(),
          " numbers on mesh ", *this);
  int64_t index = 0;
  for (size_t i = 0; i < axes.size(); ++i) {
    require(coordinate[i] >= 0 && coordinate[i] < axes[i].size, "coordinate ", coordinate[i],
            " on axis ", axes[i].name, " of mesh ", *this);
    index = index * axes[i].size + coordinate[i];
  }
  return index;
}

Coordinate DeviceMesh::Node::coordinate_at(int64_t index) const {
  Coordinate coordinate(axes.size());
  for (size_t i = axes.size(); i-- > 0;) {
    coordinate[i] = static_cast<int>(index % axes[i].size);
    index /= axes[i].size;
  }
  return coordinate;
}

std::optional<Coordinate> DeviceMesh::Node::coordinate_of(int rank) const {
  const auto it = std::ranges::find(ranks, rank);
  if (it == ranks.end()) return std::nullopt;
  return coordinate_at(it - ranks.begin());
}

int64_t DeviceMesh::Lineage::root_index(size_t axis, int coordinate) const {
  int64_t index = 0;
  int64_t rest = coordinate;
  for (size_t m = modes[axis].size(); m-- > 0;) {
    const Mode& mode = modes[axis][m];
    index += (rest % mode.size) * mode.stride;
    rest /= mode.size;
  }
  return index;
}

}  // namespace tessera
