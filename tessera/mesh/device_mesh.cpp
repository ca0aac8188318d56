#include "tessera/mesh/device_mesh.h"

#include <algorithm>
#include <atomic>
#include <unordered_map>

#include "tessera/base/errors.h"
#include "tessera/base/intern.h"
#include "tessera/base/iota_vector.h"
#include "tessera/mesh/mesh_node.h"
#include "tessera/mesh/per_mesh.h"

namespace tessera {

DeviceMesh::DeviceMesh(std::shared_ptr<const Node> node, std::shared_ptr<const Lineage> lineage)
    : node_(std::move(node)), lineage_(std::move(lineage)) {}

DeviceMesh::DeviceMesh(std::vector<MeshAxis> axes, std::string device) {
  int64_t count = 1;
  for (const auto& axis : axes) count = std::min(count * std::max(axis.size, 1), kMaxRanks + 1);
  // Other errors (a size of 0, too many ranks) are reported by the other constructor.
  std::vector<int> ranks = iota_vector<int>(count <= kMaxRanks ? count : 0);
  *this = DeviceMesh(std::move(axes), std::move(ranks), std::move(device));
}

DeviceMesh::DeviceMesh(std::vector<MeshAxis> axes, std::vector<int> ranks, std::string device) {
  Node node;
  node.axes = std::move(axes);
  node.ranks = std::move(ranks);
  node.device = std::move(device);
  *this = make(std::move(node), nullptr);
}

DeviceMesh DeviceMesh::make(Node node, std::shared_ptr<const Lineage> lineage) {
  node.check();
  node.locate_me();
  static std::atomic<uint64_t> next_number{1};
  node.number = next_number.fetch_add(1, std::memory_order_relaxed);
  return DeviceMesh(mesh_table().intern(std::move(node)), std::move(lineage));
}

uint64_t object_number(const DeviceMesh& mesh) { return mesh.id() ? mesh.id()->number : 0; }

const DeviceMesh::Node& DeviceMesh::node() const {
  require(node_ != nullptr, "an undefined mesh was used: make one with init_device_mesh or parse");
  return *node_;
}

int DeviceMesh::ndim() const { return static_cast<int>(node().axes.size()); }

int DeviceMesh::size() const { return static_cast<int>(node().ranks.size()); }

int DeviceMesh::size(int axis) const { return node().axis_at(axis).size; }

std::span<const MeshAxis> DeviceMesh::axes() const { return node().axes; }

const std::string& DeviceMesh::axis_name(int axis) const { return node().axis_at(axis).name; }

bool DeviceMesh::has_axis(std::string_view name) const {
  return std::ranges::any_of(node().axes, [&](const MeshAxis& a) { return a.name == name; });
}

int DeviceMesh::axis(std::string_view name) const {
  const auto& axes = node().axes;
  for (size_t i = 0; i < axes.size(); ++i) {
    if (axes[i].name == name) return static_cast<int>(i);
  }
  throw InvalidArgument(join_text("no axis \"", name, "\" in mesh ", to_text()));
}

const std::string& DeviceMesh::device() const { return node().device; }

std::span<const int> DeviceMesh::ranks() const { return node().ranks; }

int DeviceMesh::rank_at(std::span<const int> coordinate) const {
  return node().ranks[static_cast<size_t>(node().index_of(coordinate))];
}

int DeviceMesh::rank_at(std::initializer_list<int> coordinate) const {
  return rank_at(std::span<const int>(coordinate.begin(), coordinate.size()));
}

std::optional<Coordinate> DeviceMesh::coordinate_of(int rank) const {
  return node().coordinate_of(rank);
}

std::optional<int> DeviceMesh::my_rank() const { return node().my_rank; }

const std::optional<Coordinate>& DeviceMesh::my_coordinate() const { return node().my_coordinate; }

int DeviceMesh::local_rank(int axis) const {
  node().axis_at(axis);
  const auto& mine = my_coordinate();
  if (!mine) {
    throw InvalidArgument(my_rank() ? join_text("rank ", *my_rank(), " is outside mesh ", to_text(),
                                                " and has no place on its axes")
                                    : join_text("mesh ", to_text(),
                                                " has no rank of its own (it was parsed); use "
                                                "with_own_rank(rank) or init_device_mesh"));
  }
  return (*mine)[static_cast<size_t>(axis)];
}

int DeviceMesh::local_rank(std::string_view name) const { return local_rank(axis(name)); }

DeviceMesh DeviceMesh::with_own_rank(int rank) const {
  require(rank >= 0, "a rank is not negative, got ", rank);
  Node copy = node();
  copy.my_rank = rank;
  copy.world = nullptr;
  return make(std::move(copy), lineage_);
}

DeviceMesh DeviceMesh::in_world(std::shared_ptr<const World> world) const {
  require(world != nullptr, "in_world: no world given");
  Node copy = node();
  for (int rank : copy.ranks) {
    require(rank < world->size(), "mesh ", *this, " names rank ", rank, " but the world has ",
            world->size(), " ranks");
  }
  copy.my_rank = world->rank();
  copy.world = std::move(world);
  return make(std::move(copy), lineage_);
}

const std::shared_ptr<const World>& DeviceMesh::world() const { return node().world; }

std::vector<int> DeviceMesh::group(std::span<const int> axes, int rank) const {
  auto coordinate = coordinate_of(rank);
  require(coordinate.has_value(), "rank ", rank, " is outside mesh ", *this);
  int64_t count = 1;
  for (size_t a = 0; a < axes.size(); ++a) {
    require(
        std::ranges::count(axes, axes[a]) == 1, "a group along axes ",
        [&] { return list_text(axes); }, " of mesh ", *this, ": an axis is named twice");
    count *= size(axes[a]);
  }
  std::vector<int> members;
  members.reserve(static_cast<size_t>(count));
  for (int64_t i = 0; i < count; ++i) {
    int64_t rest = i;
    for (size_t a = axes.size(); a-- > 0;) {
      (*coordinate)[static_cast<size_t>(axes[a])] = static_cast<int>(rest % size(axes[a]));
      rest /= size(axes[a]);
    }
    members.push_back(rank_at(*coordinate));
  }
  return members;
}

std::vector<int> DeviceMesh::group(std::initializer_list<int> axes, int rank) const {
  return group(std::span<const int>(axes.begin(), axes.size()), rank);
}

std::vector<std::vector<int>> DeviceMesh::groups(std::span<const int> axes) const {
  std::vector<std::vector<int>> all;
  std::vector<bool> seen(static_cast<size_t>(size()), false);
  std::unordered_map<int, size_t> index;
  for (size_t i = 0; i < node().ranks.size(); ++i) index[node().ranks[i]] = i;
  for (size_t i = 0; i < node().ranks.size(); ++i) {
    if (seen[i]) continue;
    all.push_back(group(axes, node().ranks[i]));
    for (int member : all.back()) seen[index.at(member)] = true;
  }
  return all;
}

std::vector<std::vector<int>> DeviceMesh::groups(std::initializer_list<int> axes) const {
  return groups(std::span<const int>(axes.begin(), axes.size()));
}

std::vector<std::vector<int>> DeviceMesh::groups(std::string_view axis_name) const {
  const int index = axis(axis_name);
  return groups(std::span<const int>(&index, 1));
}

DeviceMesh mesh_without_world(std::span<const int> sizes, std::span<const std::string> names,
                              std::string device) {
  require(names.empty() || names.size() == sizes.size(), "a mesh of ", sizes.size(),
          " axes was given ", names.size(), " names");
  std::vector<MeshAxis> axes;
  for (size_t i = 0; i < sizes.size(); ++i) {
    axes.push_back({names.empty() ? join_text("axis", i) : names[i], sizes[i]});
  }
  return DeviceMesh(std::move(axes), std::move(device));
}

}  // namespace tessera
