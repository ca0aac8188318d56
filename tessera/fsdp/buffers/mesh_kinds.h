#pragma once

#include <string>
#include <variant>

#include "tessera/base/api.h"
#include "tessera/mesh/device_mesh.h"

/// How the axes that split the batch distribute parameters:
///
///   ShardMesh        "dp=8"        every rank holds an eighth                          (FSDP)
///   HybridMesh       "dp=2,fs=4"   sharded over fs, replicated over dp                 (HSDP)
///   ReplicateMesh    "dp=8"        every rank holds all                                (DDP)
///
///   fully_shard(*model, HybridMesh(mesh[{"dp", "fs"}]));
///
/// fully_shard with a plain DeviceMesh treats one axis as ShardMesh and two as HybridMesh.
namespace tessera {

namespace fsdp {

/// A mesh of a real world that contains this rank.
class TESSERA_API RealMesh {
 public:
  const DeviceMesh& mesh() const { return mesh_; }

 protected:
  /// `kind` is the name used in errors.
  RealMesh(const char* kind, const DeviceMesh& mesh, int axes);

 private:
  DeviceMesh mesh_;
};

/// A mesh whose last axis shards parameters.
class TESSERA_API ShardingMesh : public RealMesh {
 public:
  int shard_axis() const { return mesh().ndim() - 1; }

 protected:
  using RealMesh::RealMesh;
};

}  // namespace fsdp

class TESSERA_API ShardMesh : public fsdp::ShardingMesh {
 public:
  explicit ShardMesh(const DeviceMesh& mesh) : ShardingMesh("ShardMesh", mesh, 1) {}
  std::string to_text() const;  ///< "shard over dp=8"
};

class TESSERA_API HybridMesh : public fsdp::ShardingMesh {
 public:
  explicit HybridMesh(const DeviceMesh& mesh) : ShardingMesh("HybridMesh", mesh, 2) {}
  int replicate_axis() const { return 0; }
  std::string to_text() const;  ///< "replicate over dp=2, shard over fs=4"
};

class TESSERA_API ReplicateMesh : public fsdp::RealMesh {
 public:
  explicit ReplicateMesh(const DeviceMesh& mesh) : RealMesh("ReplicateMesh", mesh, 1) {}
  std::string to_text() const;  ///< "replicate over dp=8"
};

using DataParallelMesh = std::variant<ShardMesh, HybridMesh, ReplicateMesh>;

}  // namespace tessera
