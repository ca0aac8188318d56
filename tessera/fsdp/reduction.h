#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "tessera/fsdp/collectives.h"
#include "tessera/fsdp/data_mesh.h"
#include "tessera/fsdp/flat_layout.h"

/// The gradients of a group on their way: a reduce_scatter over the shard axis, then an all_reduce
/// over the replicate axis.
namespace tessera::fsdp {

/// What gradients are divided by before and after they are summed. Before, because a sum of many in
/// a narrow type overflows.
struct DivideBy {
  double before = 1;
  double after = 1;
};

class Reduction {
 public:
  Reduction(const FlatLayout& layout, const DataMesh& mesh, const Collectives& collectives,
            DivideBy divide_by);

  /// Takes a parameter's whole gradient. Small ones are copied at once, large ones kept.
  void add(size_t param, const at::Tensor& gradient);
  bool has(size_t param) const { return taken_[param]; }

  /// Starts the messages.
  void start();
  /// Ends them; then shard() gives this rank's part of each gradient that was added.
  void finish();
  at::Tensor shard(size_t param) const;
  /// Waits for messages under way; there is no result.
  void abandon();

 private:
  at::Tensor flat(int64_t elements, at::ScalarType dtype, c10::Device device) const;
  at::Tensor& room_for(size_t slot, c10::Device device);
  void all_reduce_replicas();

  const FlatLayout& layout_;
  const DataMesh& mesh_;
  const Collectives& collectives_;
  DivideBy divide_by_;
  std::vector<bool> taken_;
  std::vector<at::Tensor> inputs_;   // by slot, undefined where nothing was added
  std::vector<at::Tensor> outputs_;  // by slot
  WorkPtr work_;
};

}  // namespace tessera::fsdp
