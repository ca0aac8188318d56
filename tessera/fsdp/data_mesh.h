#pragma once

#include <memory>
#include <string>
#include <vector>

#include "tessera/comm/group.h"
#include "tessera/mesh/device_mesh.h"
#include "tessera/sharding/local_shape.h"
#include "tessera/sharding/placement.h"

/// The axes over which a batch is cut, and what each does to parameters:
///
///   shard        "dp=8"        every rank holds an eighth                          (FSDP)
///   both         "dp=2,fs=4"   every rank of fs holds a quarter, each dp row all   (HSDP)
///   replicate    "dp=8"        every rank holds all                                (DDP)
namespace tessera::fsdp {

class DataMesh {
 public:
  static DataMesh shard(const DeviceMesh& mesh);      ///< one axis
  static DataMesh replicate(const DeviceMesh& mesh);  ///< one axis
  static DataMesh both(const DeviceMesh& mesh);       ///< two: replicate, then shard

  enum class Kind { shard, replicate, both };
  Kind kind() const;
  std::string to_text() const;  ///< "shard over dp=8", "replicate over dp=2, shard over fs=4"

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

  /// How a dim of `size` is cut over the shard axis, as torch.chunk does: `[5]` over 4 gives
  /// [0,2) [2,4) [4,5) [5,5), the last ones empty.
  std::vector<Interval> chunks(int64_t size) const;
  /// The size with every rank's part as large as the largest, as it travels: 5 over 4 is 8.
  int64_t padded_size(int64_t size) const;

  /// The placements of a parameter that is cut on `dim` (kWhole: not at all).
  std::vector<Placement> placements(int dim) const;

 private:
  DataMesh(const DeviceMesh& mesh, int replicate_axis, int shard_axis);

  DeviceMesh mesh_;
  int replicate_axis_;
  int shard_axis_;
  std::shared_ptr<const comm::Group> shard_group_;
  std::shared_ptr<const comm::Group> replicate_group_;
};

}  // namespace tessera::fsdp
