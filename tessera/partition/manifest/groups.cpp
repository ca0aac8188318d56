#include "tessera/partition/manifest/groups.h"

#include <algorithm>
#include <map>

#include "tessera/base/errors.h"

namespace tessera::partition {
namespace {

/// Beyond this a mesh has more groups than a program of any use.
constexpr int kMaxAxes = 8;

std::vector<int> ascending(std::vector<int> ranks) {
  std::ranges::sort(ranks);
  return ranks;
}

}  // namespace

std::vector<ManifestGroup> groups_of(const DeviceMesh& mesh) {
  require(mesh.ndim() <= kMaxAxes, "a program is sharded over at most ", kMaxAxes, " axes, not ",
          mesh);
  std::vector<ManifestGroup> out;
  std::map<std::vector<int>, bool> known;
  const auto add = [&](std::vector<int> ranks) {
    if (ranks.size() < 2 || !known.emplace(ranks, true).second) return;
    out.push_back({std::to_string(out.size()), std::move(ranks)});
  };
  std::vector<int> all = ascending({mesh.ranks().begin(), mesh.ranks().end()});
  known.emplace(all, true);
  out.push_back({kWorldGroup, std::move(all)});
  for (uint32_t set = 1; set < 1U << mesh.ndim(); ++set) {
    std::vector<int> axes;
    for (int axis = 0; axis < mesh.ndim(); ++axis) {
      if ((set >> axis & 1U) != 0) axes.push_back(axis);
    }
    for (auto& group : mesh.groups(axes)) add(ascending(std::move(group)));
  }
  return out;
}

GroupMembers members_of(const DeviceMesh& mesh, std::span<const int> axes, int rank) {
  GroupMembers out;
  out.ranks = ascending(mesh.group(axes, rank));
  for (size_t i = 0; i < out.ranks.size(); ++i) {
    if (out.ranks[i] == rank) out.me = i;
    out.coordinates.push_back(mesh.coordinate_of(out.ranks[i]).value());
  }
  for (const auto& group : groups_of(mesh)) {
    if (group.ranks == out.ranks) out.name = group.name;
  }
  ensure(!out.name.empty() || out.size() == 1, "a group of a mesh has no name");
  return out;
}

}  // namespace tessera::partition
