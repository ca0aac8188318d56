#pragma once

#include <memory>
#include <string>
#include <vector>

#include "tessera/comm/group.h"
#include "tessera/fsdp/buffers/mesh_kinds.h"
#include "tessera/mesh/device_mesh.h"
#include "tessera/sharding/placement.h"

/// The shard and replicate groups of a data-parallel mesh of any kind (mesh_kinds.h).
namespace tessera::fsdp {

class DataMesh {
 public:
  explicit DataMesh(const DataParallelMesh& mesh);

  const DeviceMesh& mesh() const { return mesh_; }
  int shard_size() const { return shard_axis_ < 0 ? 1 : mesh_.size(shard_axis_); }
  int shard_rank() const { return shard_axis_ < 0 ? 0 : mesh_.local_rank(shard_axis_); }
  /// The number of ranks that process different parts of the batch.
  int size() const { return mesh_.size(); }

  /// nullptr if the axis does not exist or has one rank.
  const comm::Group* shard_group() const { return shard_group_.get(); }
  const comm::Group* replicate_group() const { return replicate_group_.get(); }
  const std::string& shard_name() const { return mesh_.axis_name(shard_axis_); }
  const std::string& replicate_name() const { return mesh_.axis_name(replicate_axis_); }

  /// The gathered size, in bytes, below which a collective is latency-bound: by the cost model, its
  /// start-up is more than a fifth of its time. Identical on all ranks.
  int64_t latency_bytes() const;

  bool operator==(const DataMesh& other) const {
    return mesh_ == other.mesh_ && shard_axis_ == other.shard_axis_;
  }

  /// This rank's subgroup of `ranks` consecutive ranks on the shard axis, whose size must be a
  /// multiple. Collective over the shard axis.
  std::shared_ptr<const comm::Group> smaller_group(int ranks) const;

  /// The placements of a parameter sharded on `dim` (kWhole: not sharded).
  std::vector<Placement> placements(int dim) const;

 private:
  DeviceMesh mesh_;
  int replicate_axis_ = -1;
  int shard_axis_ = -1;
  std::shared_ptr<const comm::Group> shard_group_;
  std::shared_ptr<const comm::Group> replicate_group_;
};

}  // namespace tessera::fsdp
