#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/intrusive_ptr.h>

#include <memory>
#include <optional>
#include <vector>

#include "tessera/fsdp/collectives.h"
#include "tessera/fsdp/data_mesh.h"
#include "tessera/fsdp/flat_layout.h"
#include "tessera/fsdp/gathered.h"
#include "tessera/fsdp/gradient_node.h"
#include "tessera/fsdp/reduction.h"
#include "tessera/sharding/sharding.h"

/// The parameters that one call of fully_shard took: gathered together, let go together, their
/// gradients reduced together. When is the Timeline's matter.
namespace tessera::fsdp {

class Timeline;

struct GroupOptions {
  bool reshard_after_forward = true;
  DivideBy divide_by = {};                                    ///< the ranks' gradients
  std::optional<at::ScalarType> param_dtype = std::nullopt;   ///< of gathered parameters
  std::optional<at::ScalarType> reduce_dtype = std::nullopt;  ///< of gradients while reduced
  /// What it sends with; groups of which this is the same may share a collective.
  std::shared_ptr<const Collectives> collectives = with_defaults({});
  const void* module = nullptr;  ///< whose parameters these are
};

class ParamGroup : public std::enable_shared_from_this<ParamGroup> {
 public:
  /// A parameter as it was: plain, or sharded over axes of tensor parallelism.
  struct Taken {
    at::Tensor tensor;
    int dim = 0;  ///< to cut; kWhole: none
    std::optional<int> source;
  };

  /// Turns the tensors, in place, into sharded ones that this group holds.
  static std::shared_ptr<ParamGroup> create(std::shared_ptr<Timeline> timeline, DataMesh mesh,
                                            const std::vector<Taken>& taken, GroupOptions options);
  ~ParamGroup();
  ParamGroup(const ParamGroup&) = delete;
  ParamGroup& operator=(const ParamGroup&) = delete;

  const GroupOptions& options() const { return options_; }
  const DataMesh& mesh() const { return mesh_; }
  const FlatLayout& layout() const { return *gather_layout_; }
  const std::shared_ptr<Timeline>& timeline() const { return timeline_; }

  // What dispatch asks, by parameter.
  at::Tensor produced(size_t param);
  at::Tensor produced_from(size_t param, const at::Tensor& computed) const;
  at::Tensor shards(size_t param) const;
  void shards_change() { release(); }

  // What the timeline does.
  bool is_gathered() const { return gathered_ != nullptr && !gathering_; }
  void start_gather();  ///< returns at once; nothing if it is gathered or under way
  void gather();        ///< the parameters are there when it returns
  void release();

  // What backward brings.
  void accept(size_t param, at::Tensor gradient);
  /// Starts to reduce what has come, with what earlier backwards kept back.
  void reduce_arrived();
  void forget_arrived();  ///< a backward failed
  bool requires_gradient_sync = true;

  /// Sends with these functions from now on; what is under way is ended before.
  void use(std::shared_ptr<const Collectives> collectives);

 private:
  struct Param {
    WeakTensor tensor{at::Tensor().getIntrusivePtr()};
    Sharding sharding;              // at rest
    std::optional<Sharding> inner;  // of the gathered tensor, over tensor-parallel axes
    at::Tensor shard;
    at::Tensor kept;  // whole gradient of backwards that did not reduce
    NodePtr node;
    bool arrived = false;
  };

  ParamGroup(std::shared_ptr<Timeline> timeline, DataMesh mesh, GroupOptions options);
  void take(const std::vector<Taken>& taken);
  Reduction& reduction();
  at::Tensor local_gradient(Param& param, const at::Tensor& gradient);
  void add_to_grad(Param& param, const at::Tensor& shard);
  at::Tensor alive(const Param& param) const;
  bool all_arrived() const;

  std::shared_ptr<Timeline> timeline_;
  DataMesh mesh_;
  GroupOptions options_;
  std::unique_ptr<FlatLayout> layout_;         // at rest
  std::unique_ptr<FlatLayout> gather_layout_;  // the same in the type of gathered parameters
  std::unique_ptr<FlatLayout> reduce_layout_;  // the same in the type of the reduction
  std::vector<Param> params_;
  std::vector<at::Tensor> pieces_;  // this rank's, one flat tensor a slot
  std::unique_ptr<Gathered> gathered_;
  bool gathering_ = false;
  std::shared_ptr<Reduction> reduction_;  // that gradients are added to
};

/// The group that holds a parameter; nullptr if none does.
std::shared_ptr<ParamGroup> group_of_parameter(const at::Tensor& tensor);

}  // namespace tessera::fsdp
