#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Event.h>
#include <c10/util/intrusive_ptr.h>

#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "tessera/base/api.h"
#include "tessera/dtensor/dispatch/lazy/lazy_dispatch.h"
#include "tessera/dtensor/tensor/lazy.h"
#include "tessera/fsdp/bucket.h"
#include "tessera/fsdp/buffers/data_mesh.h"
#include "tessera/fsdp/buffers/flat_layout.h"
#include "tessera/fsdp/buffers/group_options.h"
#include "tessera/fsdp/buffers/offload_placement.h"
#include "tessera/fsdp/gradient_node.h"
#include "tessera/fsdp/training_state.h"
#include "tessera/sharding/sharding.h"

/// The parameters of one fully_shard call: their shards at rest and their gradients. A Bucket
/// communicates them; the GatherScheduler decides when.
namespace tessera::fsdp {

class GatherScheduler;

class ParamGroup final : public dtensor::LazyGroup,
                         public std::enable_shared_from_this<ParamGroup> {
 public:
  /// A parameter before fully_shard: plain, or sharded over tensor-parallel axes.
  struct Taken {
    at::Tensor tensor;
    int dim = 0;  ///< to shard; kWhole: none
    std::optional<int> source;
  };

  /// Converts the tensors, in place, to sharded ones backed by this group.
  static std::shared_ptr<ParamGroup> create(std::shared_ptr<GatherScheduler> scheduler,
                                            DataMesh mesh, const std::vector<Taken>& taken,
                                            GroupOptions options);
  ~ParamGroup() override;
  ParamGroup(const ParamGroup&) = delete;
  ParamGroup& operator=(const ParamGroup&) = delete;

  const GroupOptions& options() const { return options_; }
  const DataMesh& mesh() const { return mesh_; }
  const std::shared_ptr<GatherScheduler>& scheduler() const { return scheduler_; }
  c10::Device device() const { return offload_.compute; }  ///< that parameters are gathered on
  size_t params() const { return params_.size(); }
  /// Counts the groups of this rank. Ranks that agree on gathers have the same groups, on the same
  /// or on their own meshes, so that one number names a group on all of them.
  size_t number() const { return number_; }
  /// Counts the groups of its mesh from 1: equal on all ranks of the mesh, also if they have
  /// different groups on other meshes, which number() counts as well.
  uint64_t mark() const { return mark_; }

  /// Whether any of the parameters is still referenced. The metadata of a tensor outlives its last
  /// strong reference while weak ones exist, and it references this group; the group references its
  /// tensors weakly. So an unused group must drop these references (forget_tensors) to be freed.
  bool is_used() const;
  void forget_tensors();

  /// A forward without gradients has no observable end; it counts as forward while gathered.
  TrainingState state() const;
  void enter(TrainingState state) { state_.enter(state); }

  // Layouts and bucket membership.
  const std::shared_ptr<const FlatLayout>& gather_layout() const { return gather_layout_; }
  const std::shared_ptr<const FlatLayout>& reduce_layout() const { return reduce_layout_; }
  /// This rank's shards, one flat tensor per slot of the layouts.
  std::span<const at::Tensor> pieces() const { return pieces_; }
  const std::shared_ptr<Bucket>& bucket() const { return bucket_; }
  /// `place` is the index of this group among the bucket's members, `first_param` the index of its
  /// first parameter among those of the bucket.
  void join_bucket(std::shared_ptr<Bucket> bucket, size_t place, size_t first_param);
  size_t place_in_bucket() const { return place_in_bucket_; }

  // The dtype that parameters report: the compute dtype while a module computes
  // (ComputeDtypeGuard), while a backward runs, and after unshard() until they are resharded;
  // otherwise the dtype at rest.
  void enter_compute();
  void leave_compute();
  void set_in_backward(bool in_backward);
  void set_unsharded(bool unsharded);
  /// Whether a module or a backward computes. After unshard() alone, the program may still use the
  /// parameters as they are at rest: for an optimizer's step or a state dict.
  bool computes() const { return computing_ > 0 || in_backward_; }
  bool in_forward() const { return computing_ > 0; }  ///< of a module
  at::ScalarType compute_dtype(size_t param) const { return gather_layout_->param(param).dtype; }
  bool switches_dtype() const { return switches_dtype_; }  ///< whether the two differ
  /// In a compute scope, or in a backward that replays one.
  bool is_in_compute() const { return computing_ > 0 || (has_scopes_ && dtensor::runs_backward()); }
  bool computes_on_copy() const {
    return mesh_.shard_group() != nullptr || switches_dtype_ || offload_.rest != offload_.compute;
  }

  // Interface for dispatch, by parameter.
  at::Tensor unsharded(size_t param);
  void release();
  at::Tensor unsharded_from(size_t param, const at::Tensor& computed) const;
  at::Tensor shards(size_t param) const;
  void shards_change() { bucket_->release(); }

  // Gradients.
  void accept(size_t param, at::Tensor gradient);
  int params_with_gradient() const;  ///< gradients that a complete backward produces
  /// Adds the gradients that earlier backwards kept unreduced to the bucket's reduction, unless
  /// this backward keeps them as well, and zeros for unused parameters if the options request it.
  void add_kept();
  void forget_kept();
  void take_reduced(const Reduction& reduction, size_t first_param);
  /// Blocks until offloaded gradients have arrived on the host.
  void wait_for_gradients();
  void reset_arrivals();  ///< before the next backward
  /// Whether this rank used the group in this step, or has unreduced gradients of it.
  bool took_part() const;
  /// With GroupOptions::reduce_unused: whether any rank used the group, in which case all reduce
  /// it.
  void set_reduces_unused(bool reduces) { reduces_unused_ = reduces; }
  bool requires_gradient_sync = true;

  /// The groups to gather when this one is used, instead of the next in the learned order.
  using Prefetch = std::optional<std::vector<std::weak_ptr<ParamGroup>>>;
  Prefetch forward_prefetch;
  Prefetch backward_prefetch;

  void require_memory() const;  ///< throws InvalidArgument while parameters are on meta
  /// Allocates memory on the device for parameters that are on meta; no effect on others.
  void to_empty(c10::Device device);
  at::Tensor shard(size_t param) const { return params_[param].shard; }
  /// Replaces all shards, for example to change dtype or device. Shapes must match, and all must be
  /// on one device. Gradients are converted as well. Only between steps.
  void replace_shards(const std::vector<at::Tensor>& shards);
  /// Makes `tensor` the parameter, with the value that the group stores.
  void replace_parameter(size_t param, const at::Tensor& tensor);

  // Between steps, so that parallelize_module can follow fully_shard (param_group_suspend.cpp).
  void suspend() override;
  void resume() override;
  /// The sharding of the gathered parameter over tensor-parallel axes, if any.
  const std::optional<Sharding>& inner(size_t param) const { return params_[param].inner; }

  /// The caller ensures that the other members of its bucket get the same options (control.cpp).
  void set_options(GroupOptions options);

 private:
  struct Param {
    WeakTensor tensor{at::Tensor().getIntrusivePtr()};
    Sharding sharding;              // at rest
    std::optional<Sharding> inner;  // of the gathered tensor, over tensor-parallel axes
    int dim = 0;                    // sharded over the data axes; kWhole: none
    at::Tensor shard;
    at::Tensor kept;       // full gradient of backwards that did not reduce
    at::Tensor kept_part;  // of backwards that did not reduce over replicas
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
  void note_use(const Param& param);
  bool reports_compute_dtype() const { return computes() || unsharded_; }
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
  std::optional<c10::Event> copies_to_host_;  // recorded behind copies of gradients to the host
  GroupState state_;
  bool reduces_unused_ = false;
  bool forward_records_ = false;                     // the last forward recorded for autograd
  std::unique_ptr<FlatLayout> layout_;               // at rest
  std::shared_ptr<const FlatLayout> gather_layout_;  // with the dtype of gathered parameters
  std::shared_ptr<const FlatLayout> reduce_layout_;  // with the dtype of the reduction
  std::vector<Param> params_;
  std::vector<at::Tensor> pieces_;
  std::vector<at::Tensor> suspended_;  // the parameters, between suspend() and resume()
  std::shared_ptr<Bucket> bucket_;
  size_t place_in_bucket_ = 0;
  size_t first_param_ = 0;
  size_t number_ = 0;
  uint64_t mark_ = 0;
  int computing_ = 0;  // nesting depth of compute scopes
  bool in_backward_ = false;
  bool unsharded_ = false;   // by unshard(), and not resharded since
  bool has_scopes_ = false;  // was in a compute scope before
  bool switches_dtype_ = false;
};

/// The group that holds a parameter, or nullptr.
TESSERA_API std::shared_ptr<ParamGroup> group_of_parameter(const at::Tensor& tensor);

/// The group of the parameter that a lazy tensor is a view of, or nullptr.
std::shared_ptr<ParamGroup> group_of_root(dtensor::LazyLocal& lazy);

/// That group, with the parameter's index in it.
struct PlaceOfParameter {
  std::shared_ptr<ParamGroup> group;
  size_t index = 0;
};
TESSERA_API PlaceOfParameter place_of_parameter(const at::Tensor& tensor);

}  // namespace tessera::fsdp
