#pragma once

#include <span>
#include <string>
#include <vector>

#include "tessera/mesh/device_mesh.h"
#include "tessera/partition/manifest/manifest.h"

namespace tessera::partition {

/// The group of all ranks: Python's name for what init_process_group makes.
inline constexpr const char* kWorldGroup = "0";

/// The process groups of a mesh, each with its name in programs: first "0", all ranks, then the
/// groups along each set of axes, which need groups of their own: "1", "2", ...
///
///   tp=4         0: {0,1,2,3}
///   dp=2,tp=2    0: {0,1,2,3}   1: {0,2}  2: {1,3}   along dp    3: {0,1}  4: {2,3}   along tp
///
/// Every group lists its ranks in ascending order, as Python sorts them.
std::vector<ManifestGroup> groups_of(const DeviceMesh& mesh);

/// The members of the group along `axes` that `rank` is in.
struct GroupMembers {
  std::string name;
  std::vector<int> ranks;               ///< ascending: the order of collectives
  std::vector<Coordinate> coordinates;  ///< of the ranks
  size_t me = 0;

  size_t size() const { return ranks.size(); }
};
GroupMembers members_of(const DeviceMesh& mesh, std::span<const int> axes, int rank);

}  // namespace tessera::partition
