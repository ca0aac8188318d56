#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/intrusive_ptr.h>

#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "tessera/fsdp/bucket.h"
#include "tessera/fsdp/data_mesh.h"
#include "tessera/fsdp/flat_layout.h"
#include "tessera/fsdp/gradient_node.h"
#include "tessera/fsdp/group_options.h"
#include "tessera/fsdp/offload_placement.h"
#include "tessera/fsdp/training_state.h"
#include "tessera/sharding/sharding.h"

/// The parameters that one call of fully_shard took: their shards at rest, and their gradients.
/// They travel together, in a Bucket; when is the GatherScheduler's matter.
namespace tessera::fsdp {

class GatherScheduler;

class ParamGroup : public std::enable_shared_from_this<ParamGroup> {
 public:
  /// A parameter as it was: plain, or sharded over axes of tensor parallelism.
  struct Taken {
    at::Tensor tensor;
    int dim = 0;  ///< to cut; kWhole: none
    std::optional<int> source;
  };

  /// Turns the tensors, in place, into sharded ones that this group holds.
  static std::shared_ptr<ParamGroup> create(std::shared_ptr<GatherScheduler> scheduler,
                                            DataMesh mesh, const std::vector<Taken>& taken,
                                            GroupOptions options);
  ~ParamGroup();
  ParamGroup(const ParamGroup&) = delete;
  ParamGroup& operator=(const ParamGroup&) = delete;

  const GroupOptions& options() const { return options_; }
  const DataMesh& mesh() const { return mesh_; }
  const std::shared_ptr<GatherScheduler>& scheduler() const { return scheduler_; }
  c10::Device device() const { return offload_.compute; }  ///< that parameters are gathered on
  size_t params() const { return params_.size(); }
  size_t number() const { return number_; }

  /// Whether any of the parameters still lives. A tensor's last handle leaves its description,
  /// which holds this group, to whoever holds the tensor weakly, as this group does; so once none
  /// is used, it must forget them to be freed.
  bool is_used() const;
  void forget_tensors();

  /// A forward without gradients has no end that could be seen; it counts while it is gathered.
  TrainingState state() const;
  void enter(TrainingState state) { state_.enter(state); }

  // How the parameters travel.
  const std::shared_ptr<const FlatLayout>& gather_layout() const { return gather_layout_; }
  const std::shared_ptr<const FlatLayout>& reduce_layout() const { return reduce_layout_; }
  /// This rank's shards, one flat tensor for each slot of the layouts.
  std::span<const at::Tensor> pieces() const { return pieces_; }
  const std::shared_ptr<Bucket>& bucket() const { return bucket_; }
  /// `place` is that of this group among the bucket's members, `first_param` that of its first
  /// parameter among those of the bucket.
  void travel_in(std::shared_ptr<Bucket> bucket, size_t place, size_t first_param);
  size_t place_in_bucket() const { return place_in_bucket_; }

  // The dtype that parameters report: the one that they compute in while a module computes
  // (ComputeDtypeGuard) or a backward runs, else the one that they rest in.
  void enter_compute();
  void leave_compute();
  void set_in_backward(bool in_backward);
  at::ScalarType compute_dtype(size_t param) const { return gather_layout_->param(param).dtype; }
  bool switches_dtype() const { return switches_dtype_; }  ///< whether the two differ

  // What dispatch asks, by parameter.
  at::Tensor unsharded(size_t param);
  void release();
  at::Tensor produced_from(size_t param, const at::Tensor& computed) const;
  at::Tensor shards(size_t param) const;
  void shards_change() { bucket_->release(); }

  // What backward brings.
  void accept(size_t param, at::Tensor gradient);
  int params_with_gradient() const;  ///< how many will come, if all do
  /// Adds what earlier backwards kept back to the bucket's reduction, unless this one keeps too,
  /// and zeros where the options want them.
  void add_kept();
  void forget_kept();
  void take_reduced(const Reduction& reduction, size_t first_param);
  void forget_arrived();  ///< the next backward begins anew
  /// Whether this rank has used it in the step, or has gradients of it that were kept back.
  bool took_part() const;
  /// With GroupOptions::reduce_unused: whether any rank has, so that all reduce it.
  void set_reduces_unused(bool reduces) { reduces_unused_ = reduces; }
  bool requires_gradient_sync = true;

  /// The groups to gather when this one is used, in place of the next of the learned order.
  using Prefetch = std::optional<std::vector<std::weak_ptr<ParamGroup>>>;
  Prefetch forward_prefetch;
  Prefetch backward_prefetch;

  void require_memory() const;  ///< an InvalidArgument while parameters are on meta
  /// Memory on the device for parameters that are on meta; nothing if they are not.
  void to_empty(c10::Device device);
  at::Tensor shard(size_t param) const { return params_[param].shard; }
  /// Takes these shards, one for each parameter, alike in shape and all on one device, in place of
  /// those it has: of other types, or on another device. Gradients follow. Between steps.
  void replace_shards(const std::vector<at::Tensor>& shards);
  /// From now on this tensor is the parameter, with the value that the group has.
  void hold_instead(size_t param, const at::Tensor& tensor);

  /// From now on. The caller sees to it that those it travels with have the same (control.cpp).
  void set_options(GroupOptions options);

 private:
  struct Param {
    WeakTensor tensor{at::Tensor().getIntrusivePtr()};
    Sharding sharding;              // at rest
    std::optional<Sharding> inner;  // of the gathered tensor, over tensor-parallel axes
    at::Tensor shard;
    at::Tensor kept;       // whole gradient of backwards that did not reduce
    at::Tensor kept_part;  // of those that did not reduce over replicas
    NodePtr node;
    bool arrived = false;
  };

  ParamGroup(std::shared_ptr<GatherScheduler> scheduler, DataMesh mesh, GroupOptions options);
  void take(const std::vector<Taken>& taken);
  std::vector<at::Tensor> parts_of(const std::vector<Taken>& taken,
                                   std::span<const Sharding> shardings) const;
  void lay_out(std::vector<ParamShape> shapes);
  void make_pieces();
  void hold(const at::Tensor& tensor, size_t index);
  void note_use();
  bool computes() const { return computing_ > 0 || in_backward_; }
  void report_dtypes() const;
  void run_hook_at_rest(const Param& param, const at::Tensor& tensor) const;
  at::Tensor local_gradient(Param& param, const at::Tensor& gradient);
  void add_unused(size_t index);
  void add_to_grad(Param& param, const at::Tensor& shard);
  at::Tensor alive(const Param& param) const;

  std::shared_ptr<GatherScheduler> scheduler_;
  DataMesh mesh_;
  GroupOptions options_;
  OffloadPlacement offload_;
  StateOfGroup state_;
  bool reduces_unused_ = false;
  bool forward_records_ = false;                     // the last forward did, for autograd
  std::unique_ptr<FlatLayout> layout_;               // at rest
  std::shared_ptr<const FlatLayout> gather_layout_;  // the same in the type of gathered parameters
  std::shared_ptr<const FlatLayout> reduce_layout_;  // the same in the type of the reduction
  std::vector<Param> params_;
  std::vector<at::Tensor> pieces_;
  std::shared_ptr<Bucket> bucket_;
  size_t place_in_bucket_ = 0;
  size_t first_param_ = 0;
  size_t number_ = 0;
  int computing_ = 0;  // scopes that were entered
  bool in_backward_ = false;
  bool switches_dtype_ = false;
};

/// The group that holds a parameter; nullptr if none does.
std::shared_ptr<ParamGroup> group_of_parameter(const at::Tensor& tensor);

/// The same with the parameter's number in it.
struct PlaceOfParameter {
  std::shared_ptr<ParamGroup> group;
  size_t index = 0;
};
PlaceOfParameter place_of_parameter(const at::Tensor& tensor);

}  // namespace tessera::fsdp
