#include "tessera/fsdp/buffers/mesh_kinds.h"

#include "tessera/base/errors.h"

namespace tessera {
namespace {

std::string over(const char* what, const DeviceMesh& mesh, int axis) {
  return join_text(what, " over ", mesh.axis_name(axis), "=", mesh.size(axis));
}

}  // namespace

namespace fsdp {

RealMesh::RealMesh(const char* kind, const DeviceMesh& mesh, int axes) : mesh_(mesh) {
  require(mesh.defined() && mesh.world() != nullptr, "a ", kind,
          " needs a mesh of real ranks; init_device_mesh makes one");
  require(mesh.ndim() == axes, "a ", kind, " has ", axes, axes == 1 ? " axis" : " axes", ", ", mesh,
          " has ", mesh.ndim(), "; take a part of the mesh, or merge axes with flatten");
  require(mesh.contains_me(), "a ", kind, " of ", mesh,
          ", of which this rank is no part; call it on the mesh's ranks alone");
}

}  // namespace fsdp

std::string ShardMesh::to_text() const { return over("shard", mesh(), shard_axis()); }

std::string HybridMesh::to_text() const {
  return over("replicate", mesh(), replicate_axis()) + ", " + over("shard", mesh(), shard_axis());
}

std::string ReplicateMesh::to_text() const { return over("replicate", mesh(), 0); }

}  // namespace tessera
