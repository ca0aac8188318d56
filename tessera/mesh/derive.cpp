// Meshes derived from meshes: submesh, flatten, unflatten, concatenate. Each only rewrites the
// lineage (the strides of the axes in the root) and reads the ranks from it.
#include <algorithm>
#include <set>

#include "tessera/base/errors.h"
#include "tessera/mesh/mesh_node.h"

namespace tessera {
namespace {

using Lineage = DeviceMesh::Lineage;
using Mode = Lineage::Mode;

std::shared_ptr<const Lineage> row_major(std::shared_ptr<const DeviceMesh::Node> node) {
  auto lineage = std::make_shared<Lineage>();
  lineage->modes.resize(node->axes.size());
  int64_t stride = 1;
  for (size_t i = node->axes.size(); i-- > 0;) {
    lineage->modes[i] = {{node->axes[i].size, stride}};
    stride *= node->axes[i].size;
  }
  lineage->root = std::move(node);
  return lineage;
}

std::string names_text(std::span<const std::string> names) {
  std::string out;
  for (const auto& name : names) out += (out.empty() ? "" : ",") + name;
  return out;
}

void require_distinct(std::string_view asked, const DeviceMesh& mesh,
                      std::span<const std::string> names) {
  require(!names.empty(), asked, " of ", mesh, ": no axis was named");
  require(std::set<std::string_view>(names.begin(), names.end()).size() == names.size(), asked,
          " of ", mesh, ": an axis is named twice in ", [&] { return names_text(names); });
}

/// Merges neighbours that traverse the root as one: (2, stride 4) (4, stride 1) is (8, stride 1).
std::vector<Mode> coalesce(std::span<const Mode> modes) {
  std::vector<Mode> out;
  for (const Mode& mode : modes) {
    if (mode.size == 1) continue;
    if (!out.empty() && out.back().stride == mode.size * mode.stride) {
      out.back() = Mode{out.back().size * mode.size, mode.stride};
    } else {
      out.push_back(mode);
    }
  }
  return out;
}

/// Splits a list of modes into groups of the given sizes, outermost first. nullopt if a part ends
/// within a mode such that strides cannot express it: (3)(2) as 2x3.
std::optional<std::vector<std::vector<Mode>>> split_modes(std::span<const Mode> modes,
                                                          std::span<const MeshAxis> into) {
  std::vector<Mode> left = coalesce(modes);
  std::vector<std::vector<Mode>> out(into.size());
  for (size_t part = into.size(); part-- > 0;) {
    int need = into[part].size;
    while (need > 1) {
      ensure(!left.empty(), "unflatten ran out of modes");
      Mode& last = left.back();
      const int taken = std::min(need, last.size);
      if (need % taken != 0 || last.size % taken != 0) return std::nullopt;
      out[part].insert(out[part].begin(), Mode{taken, last.stride});
      need /= taken;
      last = Mode{last.size / taken, last.stride * taken};
      if (last.size == 1) left.pop_back();
    }
  }
  return out;
}

bool same_root(const DeviceMesh::Node& a, const DeviceMesh::Node& b) {
  return &a == &b || (a.axes == b.axes && a.ranks == b.ranks);
}

}  // namespace

std::shared_ptr<const Lineage> DeviceMesh::lineage() const {
  node();  // throws for an undefined mesh
  return lineage_ ? lineage_ : row_major(node_);
}

DeviceMesh DeviceMesh::from_lineage(Lineage lineage, std::vector<MeshAxis> axes) const {
  Node made;
  made.axes = std::move(axes);
  made.device = node().device;
  made.my_rank = node().my_rank;
  made.world = node().world;
  const auto& root_ranks = lineage.root->ranks;
  std::vector<bool> used(root_ranks.size(), false);
  int64_t count = 1;
  for (const auto& axis : made.axes) count = std::min(count * axis.size, kMaxRanks + 1);
  for (int64_t i = 0; i < count; ++i) {
    const Coordinate coordinate = made.coordinate_at(i);
    int64_t index = lineage.offset;
    for (size_t a = 0; a < coordinate.size(); ++a) index += lineage.root_index(a, coordinate[a]);
    const auto at = static_cast<size_t>(index);
    // Parts that share an axis of the root, and only those, leave the root's range or reach a rank
    // twice.
    require(index >= 0 && at < used.size() && !used[at],
            "concatenate: the parts overlap: each axis of the root mesh may appear once");
    used[at] = true;
    made.ranks.push_back(root_ranks[at]);
  }
  return make(std::move(made), std::make_shared<const Lineage>(std::move(lineage)));
}

DeviceMesh DeviceMesh::submesh(std::span<const std::string> names) const {
  require_distinct("submesh", *this, names);
  const auto from = lineage();
  Lineage derived;
  derived.root = from->root;
  derived.offset = from->offset;
  std::vector<MeshAxis> axes;
  std::vector<bool> kept(static_cast<size_t>(ndim()), false);
  for (const auto& name : names) {
    const auto index = static_cast<size_t>(axis(name));
    kept[index] = true;
    derived.modes.push_back(from->modes[index]);
    axes.push_back(node().axes[index]);
  }
  for (size_t i = 0; i < kept.size(); ++i) {
    if (!kept[i] && my_coordinate()) {
      derived.offset += from->root_index(i, (*my_coordinate())[i]);
    }
  }
  return from_lineage(std::move(derived), std::move(axes));
}

DeviceMesh DeviceMesh::operator[](std::string_view name) const {
  const std::string one(name);
  return submesh(std::span<const std::string>(&one, 1));
}

DeviceMesh DeviceMesh::operator[](std::initializer_list<std::string> names) const {
  return submesh(std::span<const std::string>(names.begin(), names.size()));
}

std::vector<DeviceMesh> DeviceMesh::all_submeshes(std::span<const std::string> names) const {
  std::vector<int> others;
  for (int i = 0; i < ndim(); ++i) {
    if (std::ranges::find(names, axis_name(i)) == names.end()) others.push_back(i);
  }
  std::vector<DeviceMesh> all;
  // The ranks that differ only on the other axes: each is in a different submesh.
  for (int rank : group(others, node().ranks.front())) {
    Node seen = node();
    seen.my_rank = rank;
    const DeviceMesh through = make(std::move(seen), lineage_).submesh(names);
    Node mine = through.node();
    mine.my_rank = node().my_rank;
    all.push_back(make(std::move(mine), through.lineage_));
  }
  return all;
}

DeviceMesh DeviceMesh::flatten(std::span<const std::string> names, std::string new_name) const {
  require_distinct("flatten", *this, names);
  const auto from = lineage();
  std::vector<Mode> merged;
  int64_t size = 1;
  std::vector<bool> gone(static_cast<size_t>(ndim()), false);
  for (const auto& name : names) {
    const auto index = static_cast<size_t>(axis(name));
    gone[index] = true;
    merged.insert(merged.end(), from->modes[index].begin(), from->modes[index].end());
    size *= node().axes[index].size;
  }
  Lineage derived;
  derived.root = from->root;
  derived.offset = from->offset;
  std::vector<MeshAxis> axes;
  const auto place = static_cast<size_t>(axis(names.front()));
  for (size_t i = 0; i < gone.size(); ++i) {
    if (i == place) {
      derived.modes.push_back(merged);
      axes.push_back({std::move(new_name), static_cast<int>(size)});
    } else if (!gone[i]) {
      derived.modes.push_back(from->modes[i]);
      axes.push_back(node().axes[i]);
    }
  }
  return from_lineage(std::move(derived), std::move(axes));
}

DeviceMesh DeviceMesh::flatten(std::initializer_list<std::string> names,
                               std::string new_name) const {
  return flatten(std::span<const std::string>(names.begin(), names.size()), std::move(new_name));
}

DeviceMesh DeviceMesh::flatten(std::string new_name) const {
  std::vector<std::string> names;
  for (const auto& axis : axes()) names.push_back(axis.name);
  return flatten(names, std::move(new_name));
}

DeviceMesh DeviceMesh::unflatten(std::string_view name, std::vector<MeshAxis> into) const {
  const int whole = axis(name);
  require(!into.empty(), "unflatten of axis ", name, ": no parts were given");
  int64_t product = 1;
  for (const auto& part : into) {
    require(part.size >= 1, "unflatten of axis ", name, ": part ", part.name, " has size ",
            part.size);
    product = std::min(product * part.size, kMaxRanks + 1);
  }
  require(product == size(whole), "unflatten of axis ", name, ": the parts hold ", product,
          " ranks, the axis ", size(whole));
  std::vector<MeshAxis> axes(node().axes);
  const auto axes_at = axes.begin() + whole;
  axes.insert(axes.erase(axes_at), into.begin(), into.end());

  Lineage derived = *lineage();
  const auto modes_at = derived.modes.begin() + whole;
  const auto parts = split_modes(*modes_at, into);
  if (!parts) {
    // The row-major order of ranks is kept, but the parts cannot be expressed as strides in the
    // root: the new mesh becomes a root.
    Node made = node();
    made.axes = std::move(axes);
    return make(std::move(made), nullptr);
  }
  derived.modes.insert(derived.modes.erase(modes_at), parts->begin(), parts->end());
  return from_lineage(std::move(derived), std::move(axes));
}

DeviceMesh DeviceMesh::concatenate(std::span<const DeviceMesh> parts) {
  require(!parts.empty(), "concatenate: no meshes were given");
  const DeviceMesh& first = parts.front();
  Lineage derived;
  derived.root = first.lineage()->root;
  std::vector<MeshAxis> axes;
  std::optional<int64_t> crossing;  // the root index of the own rank, which all parts contain
  int64_t way_back = 0;             // from there to the first rank of the result
  for (const auto& part : parts) {
    const auto from = part.lineage();
    require(same_root(*from->root, *derived.root) && part.my_rank() == first.my_rank() &&
                part.world() == first.world() && part.device() == first.device(),
            "concatenate: ", part, " and ", first,
            " are not parts of one mesh with one rank as their own");
    axes.insert(axes.end(), part.axes().begin(), part.axes().end());
    derived.modes.insert(derived.modes.end(), from->modes.begin(), from->modes.end());
    int64_t own = 0;
    if (const auto& mine = part.my_coordinate()) {
      for (size_t a = 0; a < mine->size(); ++a) own += from->root_index(a, (*mine)[a]);
    }
    require(!crossing || *crossing == from->offset + own, "concatenate: ", part, " and ", first,
            " do not run through one rank");
    crossing = from->offset + own;
    way_back += own;
  }
  derived.offset = *crossing - way_back;
  return first.from_lineage(std::move(derived), std::move(axes));
}

DeviceMesh DeviceMesh::concatenate(std::initializer_list<DeviceMesh> parts) {
  return concatenate(std::span<const DeviceMesh>(parts.begin(), parts.size()));
}

}  // namespace tessera
