#pragma once

#include <memory>
#include <string>
#include <vector>

#include "tessera/comm/group.h"
#include "tessera/fsdp/mesh_kinds.h"
#include "tessera/mesh/device_mesh.h"
#include "tessera/sharding/placement.h"

/// A mesh of any kind (mesh_kinds.h) as a group of parameters needs it: who gathers, who reduces.
namespace tessera::fsdp {

class DataMesh {
 public:
  explicit DataMesh(const DataParallelMesh& mesh);

  const DeviceMesh& mesh() const { return mesh_; }
  int shard_size() const { return shard_axis_ < 0 ? 1 : mesh_.size(shard_axis_); }
  int shard_rank() const { return shard_axis_ < 0 ? 0 : mesh_.local_rank(shard_axis_); }
  int replicate_size() const { return replicate_axis_ < 0 ? 1 : mesh_.size(replicate_axis_); }
  /// Ranks that each see another part of the batch.
  int size() const { return mesh_.size(); }

  /// nullptr where there is no such axis, or it has one rank.
  const comm::Group* shard_group() const { return shard_group_.get(); }
  const comm::Group* replicate_group() const { return replicate_group_.get(); }
  const std::string& shard_name() const { return mesh_.axis_name(shard_axis_); }
  const std::string& replicate_name() const { return mesh_.axis_name(replicate_axis_); }

  /// Gathered bytes below which a collective takes longer to start than it should: where the cost
  /// model says that its start is more than a fifth of its time. Alike on all ranks.
  int64_t latency_bytes() const;

  bool operator==(const DataMesh& other) const {
    return mesh_ == other.mesh_ && shard_axis_ == other.shard_axis_;
  }

  /// My group of `ranks` neighbours on the shard axis, which their number divides. All of them ask.
  std::shared_ptr<const comm::Group> smaller_group(int ranks) const;

  /// The placements of a parameter that is cut on `dim` (kWhole: not at all).
  std::vector<Placement> placements(int dim) const;

 private:
  DeviceMesh mesh_;
  int replicate_axis_ = -1;
  int shard_axis_ = -1;
  std::shared_ptr<const comm::Group> shard_group_;
  std::shared_ptr<const comm::Group> replicate_group_;
};

}  // namespace tessera::fsdp
