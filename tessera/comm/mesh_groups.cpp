// Connects meshes with worlds: the group of ranks along an axis.
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include "tessera/base/errors.h"
#include "tessera/base/iota_vector.h"
#include "tessera/base/ranks_text.h"
#include "tessera/collective/group_info.h"
#include "tessera/comm/adopt_mesh.h"
#include "tessera/comm/processes.h"
#include "tessera/comm/world.h"

namespace tessera::comm {
namespace {

/// A world that has only the groups it was given.
class ExternalWorld final : public RankWorld {
 public:
  ExternalWorld(int rank, int size, std::string name)
      : RankWorld(Kind::external, rank, size, std::move(name), kDefaultTimeout) {}

 private:
  Backends make_backends(std::span<const int> ranks, int /*index*/,
                         const std::string& /*group_name*/) override {
    throw NotSupported(join_text("no group of ranks ", ranks_text(ranks), " in world ", name(),
                                 ", which was made from existing process groups; adopt one for "
                                 "these ranks, or use init_device_mesh"));
  }
};

std::string next_external_name() {
  static std::atomic<int> count{0};
  return join_text("tessera.x", count++);
}

/// Creates the groups of every axis of a mesh that contains this rank, so that the first collective
/// does not wait for slow ranks.
DeviceMesh with_groups(const DeviceMesh& paper, std::shared_ptr<RankWorld> world) {
  if (!world) world = current_world();
  for (const int rank : paper.ranks()) {
    if (rank < world->size()) continue;
    const std::string needs = join_text("mesh ", paper, " needs rank ", rank, " but ");
    require(world->size() > 1, needs,
            "this program runs as one rank; start it by tessera launch -n ", paper.size(),
            ", torchrun or the like, or let run_ranks(", paper.size(), ", ...) make threads of it");
    require(false, needs, "world ", world->name(), " has ", world->size(),
            " ranks; start more or make the mesh smaller");
  }
  DeviceMesh mesh = paper.in_world(world);
  if (!mesh.contains_me()) return mesh;
  for (int axis = 0; axis < mesh.ndim(); ++axis) group_of(mesh, std::span<const int>(&axis, 1));
  return mesh;
}

}  // namespace

RankWorld& world_of(const DeviceMesh& mesh) {
  const auto* world = dynamic_cast<const RankWorld*>(mesh.world().get());
  require(world != nullptr, "mesh ", mesh,
          " was parsed and belongs to no world, so it cannot communicate; make it with "
          "init_device_mesh");
  // Meshes hold their world as const, since they do not change it. Creating a group only fills a
  // cache.
  return const_cast<RankWorld&>(*world);
}

std::shared_ptr<const Group> group_of(const DeviceMesh& mesh, std::span<const int> axes) {
  RankWorld& world = world_of(mesh);
  require(mesh.contains_me(), "rank ", world.rank(), " is outside mesh ", mesh,
          " and has no group on its axes");
  return world.group(mesh.group(axes, world.rank()));
}

std::shared_ptr<const Group> group_of(const DeviceMesh& mesh, std::string_view axis) {
  const int index = mesh.axis(axis);
  return group_of(mesh, std::span<const int>(&index, 1));
}

std::shared_ptr<const Group> group_of(const DeviceMesh& mesh) {
  return group_of(mesh, iota_vector<int>(mesh.ndim()));
}

DeviceMesh init_device_mesh(const std::string& device, std::span<const int> sizes,
                            std::span<const std::string> names, std::shared_ptr<RankWorld> world) {
  return with_groups(mesh_without_world(sizes, names, device), std::move(world));
}

DeviceMesh init_device_mesh(std::string_view text, std::shared_ptr<RankWorld> world) {
  return with_groups(DeviceMesh::parse(text), std::move(world));
}

DeviceMesh mesh_from_groups(const DeviceMesh& mesh, int my_rank, int world_size,
                            std::span<const c10::intrusive_ptr<c10d::ProcessGroup>> groups) {
  auto world = std::make_shared<ExternalWorld>(my_rank, world_size, next_external_name());
  return adopt_mesh(mesh, std::move(world), groups);
}

DeviceMesh adopt_mesh(const DeviceMesh& mesh, std::shared_ptr<RankWorld> world,
                      std::span<const c10::intrusive_ptr<c10d::ProcessGroup>> groups) {
  const int my_rank = world->rank();
  require(static_cast<int>(groups.size()) == mesh.ndim(), "mesh ", mesh, " has ", mesh.ndim(),
          " axes; ", groups.size(), " process groups were given");
  const DeviceMesh made = mesh.in_world(world);
  require(made.contains_me(), "rank ", my_rank, " is outside mesh ", mesh);
  for (int axis = 0; axis < mesh.ndim(); ++axis) {
    const auto ranks = made.group(std::span<const int>(&axis, 1), my_rank);
    if (ranks.size() == 1) continue;  // needs no connections; the world creates its group
    world->adopt(ranks, groups[static_cast<size_t>(axis)]);
  }
  return made;
}

}  // namespace tessera::comm
