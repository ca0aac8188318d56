#include "tessera/fsdp/param_group.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_strided.h>
#include <c10/core/GradMode.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <torch/csrc/autograd/function_hook.h>

#include <algorithm>
#include <deque>

#include "tessera/base/errors.h"
#include "tessera/comm/world.h"
#include "tessera/dtensor/buckets.h"
#include "tessera/dtensor/dispatch/lazy/lazy_dtypes.h"
#include "tessera/dtensor/dtensor.h"
#include "tessera/fsdp/gather_scheduler.h"

namespace tessera::fsdp {
namespace {

/// One parameter of a group, as seen by dispatch.
class HeldParameter final : public dtensor::LazyLocal {
 public:
  HeldParameter(std::shared_ptr<ParamGroup> group, size_t index)
      : group_(std::move(group)), index_(index) {}

  at::Tensor unsharded() override { return group_->unsharded(index_); }
  void release() override { group_->release(); }
  at::Tensor unsharded_from(const at::Tensor& computed) override {
    return group_->unsharded_from(index_, computed);
  }
  at::Tensor shards() override { return group_->shards(index_); }
  void shards_change() override { group_->shards_change(); }
  std::optional<at::ScalarType> compute_dtype() const override {
    return group_->compute_dtype(index_);
  }
  bool computes() const override { return group_->computes(); }
  bool in_forward() const override { return group_->in_forward(); }
  bool to_empty(c10::Device device) override {
    group_->to_empty(device);
    return true;
  }
  std::optional<Sharding> unsharded_sharding() const override { return group_->inner(index_); }
  std::shared_ptr<dtensor::LazyGroup> group() override { return group_; }
  const std::shared_ptr<ParamGroup>& param_group() const { return group_; }
  size_t index() const { return index_; }

 private:
  std::shared_ptr<ParamGroup> group_;
  size_t index_;
};

/// Views of a result are taken as its own strides allow, and some name strides; a whole value that
/// was sent is row-major.
at::Tensor with_strides_of(const at::Tensor& computed, const at::Tensor& whole) {
  const bool shares_elements =
      std::ranges::any_of(computed.strides(), [](int64_t n) { return n == 0; });
  if (whole.strides() == computed.strides() || shares_elements) return whole;
  return at::empty_strided(whole.sizes(), computed.strides(), whole.options()).copy_(whole);
}

/// The sharding at rest of a tensor-parallel parameter: the tensor-parallel axes are applied first.
Sharding combined(const Sharding& inner, const DataMesh& data, const Sharding& outer) {
  const DeviceMesh mesh = DeviceMesh::concatenate({data.mesh(), inner.mesh()});
  const int data_axes = data.mesh().ndim();
  std::vector<Placement> placements(outer.placements().begin(), outer.placements().end());
  placements.insert(placements.end(), inner.placements().begin(), inner.placements().end());
  std::vector<int> order = inner.order();
  for (int& axis : order) axis += data_axes;
  for (const int axis : outer.order()) order.push_back(axis);
  return Sharding(mesh, std::move(placements), {inner.shape().begin(), inner.shape().end()},
                  {.dtype = inner.dtype(), .order = std::move(order)});
}

}  // namespace

std::shared_ptr<ParamGroup> group_of_parameter(const at::Tensor& tensor) {
  return place_of_parameter(tensor).group;
}

std::shared_ptr<ParamGroup> group_of_root(dtensor::LazyLocal& lazy) {
  const auto* held = dynamic_cast<const HeldParameter*>(&lazy.root());
  return held == nullptr ? nullptr : held->param_group();
}

PlaceOfParameter place_of_parameter(const at::Tensor& tensor) {
  const auto* held = dynamic_cast<const HeldParameter*>(dtensor::lazy_local(tensor));
  if (held == nullptr) return {};
  return {held->param_group(), held->index()};
}

ParamGroup::ParamGroup(std::shared_ptr<GatherScheduler> scheduler, DataMesh mesh,
                       GroupOptions options)
    : scheduler_(std::move(scheduler)), mesh_(std::move(mesh)), options_(options) {}

std::shared_ptr<ParamGroup> ParamGroup::create(std::shared_ptr<GatherScheduler> scheduler,
                                               DataMesh mesh, const std::vector<Taken>& taken,
                                               GroupOptions options) {
  std::shared_ptr<ParamGroup> group(new ParamGroup(std::move(scheduler), std::move(mesh), options));
  group->take(taken);
  Bucket::make({group.get()});
  group->number_ = group->scheduler_->add(*group);
  group->mark_ = GatherScheduler::count_on(group->mesh().mesh());
  return group;
}

ParamGroup::~ParamGroup() { scheduler_->remove(*this); }

bool ParamGroup::is_used() const {
  return std::ranges::any_of(params_, [](const Param& p) { return p.tensor.use_count() > 0; });
}

void ParamGroup::forget_tensors() {
  for (Param& param : params_) {
    param.node = {};
    param.tensor.reset();
  }
}

void ParamGroup::join_bucket(std::shared_ptr<Bucket> bucket, size_t place, size_t first_param) {
  bucket_ = std::move(bucket);
  place_in_bucket_ = place;
  first_param_ = first_param;
}

/// This rank's shards, on the original device; broadcast from the source rank if one is given.
std::vector<at::Tensor> ParamGroup::parts_of(const std::vector<Taken>& taken,
                                             std::span<const Sharding> shardings) const {
  std::vector<at::Tensor> wholes;
  for (const Taken& item : taken) {
    const at::Tensor data = item.tensor.detach();
    wholes.push_back(is_dtensor(data) ? to_local(data) : data);
  }
  const auto source = taken[0].source;
  if (source && mesh_.mesh().size() > 1 && !wholes[0].is_meta()) {
    return dtensor::scatter_all_from(wholes, *source, shardings);
  }
  std::vector<at::Tensor> parts;
  for (size_t i = 0; i < wholes.size(); ++i) {
    if (wholes[i].is_meta()) {
      const auto shape = shardings[i].local_shape();
      parts.push_back(at::empty(at::IntArrayRef(shape.data(), shape.size()), wholes[i].options()));
      continue;
    }
    parts.push_back(to_local(distribute_tensor(
        wholes[i], mesh_.mesh(), mesh_.placements(taken[i].dim), {.source = std::nullopt})));
  }
  return parts;
}

void ParamGroup::take(const std::vector<Taken>& taken) {
  const c10::AutoGradMode no_grad(false);
  std::vector<ParamShape> shapes;
  std::vector<Sharding> outers;
  for (const Taken& item : taken) {
    Param param;
    param.dim = item.dim;
    if (is_dtensor(item.tensor)) param.inner = sharding(item.tensor);
    const auto whole =
        param.inner ? param.inner->local_shape() : std::span<const int64_t>(item.tensor.sizes());
    outers.emplace_back(mesh_.mesh(), mesh_.placements(item.dim),
                        std::vector<int64_t>(whole.begin(), whole.end()),
                        ShardingOptions{.dtype = static_cast<DType>(item.tensor.scalar_type())});
    param.sharding = param.inner ? combined(*param.inner, mesh_, outers.back()) : outers.back();
    shapes.push_back({{whole.begin(), whole.end()},
                      item.tensor.scalar_type(),
                      mesh_.shard_size() == 1 ? kWhole : item.dim});
    params_.push_back(std::move(param));
  }
  lay_out(std::move(shapes));
  const auto parts = parts_of(taken, outers);
  offload_ = OffloadPlacement::of(parts[0].device(), mesh_.mesh(), options_);
  make_pieces();
  for (size_t i = 0; i < params_.size(); ++i) {
    params_[i].shard.copy_(parts[i]);
    ensure(std::ranges::equal(params_[i].shard.sizes(), params_[i].sharding.local_shape()),
           "the strides of a shard differ from those of its sharding");
    hold(taken[i].tensor, i);
  }
}

/// The tensor reports the compute device, because gradients are produced there.
void ParamGroup::hold(const at::Tensor& tensor, size_t index) {
  Param& param = params_[index];
  dtensor::become(tensor, param.shard, param.sharding,
                  std::make_shared<HeldParameter>(shared_from_this(), index), offload_.compute);
  param.tensor = WeakTensor(tensor.getIntrusivePtr());
  param.node = install_gradient_node(tensor, weak_from_this(), index);
  if (reports_compute_dtype()) dtensor::report_dtype(tensor, compute_dtype(index));
}

at::Tensor ParamGroup::shards(size_t index) const {
  return dtensor::wrap(params_[index].shard, params_[index].sharding);
}

at::Tensor ParamGroup::unsharded_from(size_t index, const at::Tensor& computed) const {
  const c10::AutoGradMode no_grad(false);
  const Param& param = params_[index];
  if (!param.inner) return with_strides_of(computed, full_tensor(computed).to(offload_.compute));
  const auto data_axes = static_cast<size_t>(mesh_.mesh().ndim());
  std::vector<Placement> inner;
  std::vector<Placement> all(data_axes);
  for (const Placement& placement : sharding(computed).placements().subspan(data_axes)) {
    inner.push_back(placement.is_partial() ? Replicate() : placement);
    all.push_back(inner.back());
  }
  const at::Tensor local = to_local(redistribute(computed, std::move(all))).to(offload_.compute);
  const Sharding as(
      param.inner->mesh(), std::move(inner), computed.sizes().vec(),
      {.dtype = static_cast<DType>(local.scalar_type()), .stride = computed.strides().vec()});
  return dtensor::wrap(dtensor::strided_as(local, as), as);
}

at::Tensor ParamGroup::unsharded(size_t index) {
  require_memory();
  const Param& param = params_[index];
  at::Tensor whole;
  if (!bucket_->computes_on_copy()) {
    scheduler_->leave_failed_backward();
    note_use(param);
    whole = param.shard;
  } else {
    scheduler_->touch(*this);
    note_use(param);
    whole = bucket_->whole(first_param_ + index);
  }
  if (!param.inner) return whole;
  return dtensor::wrap(whole, param.inner->with_dtype(static_cast<DType>(whole.scalar_type())));
}

void ParamGroup::release() {
  if (bucket_->computes_on_copy()) scheduler_->touched(*this);
}

void ParamGroup::require_memory() const {
  // Fake ranks plan with shapes alone.
  const auto kind = comm::world_of(mesh_.mesh()).kind();
  require(!offload_.on_meta() || kind == comm::RankWorld::Kind::fake,
          "a parameter of fully_shard is used while it is on meta; to_empty(module, device) gives "
          "it memory, then write its values");
}

void ParamGroup::note_use(const Param& param) {
  const bool backward = scheduler_->in_backward();
  scheduler_->count_use();
  const bool has_streams = !offload_.compute.is_cpu() && !offload_.on_meta();
  if (has_streams && !backward && param.node) use_current_stream(param.node);
  enter(backward ? TrainingState::pre_backward : TrainingState::forward);
  forward_records_ = backward || c10::GradMode::is_enabled();
}

TrainingState ParamGroup::state() const {
  const bool passed = state_.now() == TrainingState::forward && !forward_records_;
  return passed && !bucket_->is_gathered() ? TrainingState::idle : state_.now();
}

at::Tensor ParamGroup::alive(const Param& param) const { return at::Tensor(param.tensor.lock()); }

void ParamGroup::set_options(GroupOptions options) {
  const bool sends_otherwise = options.collectives != options_.collectives ||
                               options.smaller_group != options_.smaller_group;
  if (sends_otherwise) bucket_->release();
  options_ = std::move(options);
}

int ParamGroup::params_with_gradient() const {
  int count = 0;
  for (const Param& param : params_) {
    const at::Tensor tensor = alive(param);
    count += tensor.defined() && tensor.requires_grad() ? 1 : 0;
  }
  return count;
}

/// The plain gradient of the gathered tensor's local part. Undefined if the gradient is a DTensor
/// on the parameter's own mesh: that one is already global and needs no sum over the batch.
at::Tensor ParamGroup::local_gradient(Param& param, const at::Tensor& gradient) {
  if (!is_dtensor(gradient)) {
    ensure(!param.inner, "a plain gradient of a tensor-parallel parameter");
    return gradient;
  }
  const auto dtype = static_cast<DType>(gradient.scalar_type());
  if (param.inner && device_mesh(gradient) == param.inner->mesh()) {
    return to_local(redistribute(gradient, param.inner->with_dtype(dtype)));
  }
  add_to_grad(param, to_local(redistribute(gradient, param.sharding.with_dtype(dtype))));
  return {};
}

void ParamGroup::accept(size_t index, at::Tensor gradient) {
  scheduler_->enter_backward();
  enter(TrainingState::pre_backward);
  const c10::AutoGradMode no_grad(false);
  Param& param = params_[index];
  gradient = local_gradient(param, gradient);
  const bool first = !std::exchange(param.arrived, true);  // in this backward
  if (gradient.defined() && param.kept.defined()) gradient = param.kept.add(gradient);
  if (requires_gradient_sync) {
    param.kept.reset();
    if (gradient.defined()) bucket_->reduction().add(first_param_ + index, gradient);
  } else if (gradient.defined()) {
    param.kept = std::move(gradient);
  }
  if (!first || !bucket_->count_arrival()) return;
  bucket_->release_after_backward();
  if (!scheduler_->agrees()) bucket_->reduce_arrived();
}

void ParamGroup::add_kept() {
  if (!requires_gradient_sync) return;
  for (size_t i = 0; i < params_.size(); ++i) {
    const at::Tensor kept = std::exchange(params_[i].kept, at::Tensor());
    if (kept.defined()) bucket_->reduction().add(first_param_ + i, kept);
    if (options_.reduce_unused && reduces_unused_) add_unused(i);
    if (!params_[i].kept_part.defined() || !options_.all_reduce_gradients) continue;
    bucket_->reduction().add_part(first_param_ + i,
                                  std::exchange(params_[i].kept_part, at::Tensor()));
  }
}

bool ParamGroup::took_part() const {
  return state() != TrainingState::idle || std::ranges::any_of(params_, [](const Param& p) {
           return p.kept.defined() || p.kept_part.defined();
         });
}

/// Other ranks may have a gradient for it.
void ParamGroup::add_unused(size_t index) {
  const at::Tensor tensor = alive(params_[index]);
  if (!tensor.defined() || !tensor.requires_grad()) return;
  bucket_->reduction().add_zeros(first_param_ + index, offload_.compute);
}

void ParamGroup::take_reduced(const Reduction& reduction, size_t first_param) {
  std::deque<dtensor::ReportedDtype> at_rest;  // a hook may step an optimizer over all of them
  const bool has_hooks =
      switches_dtype_ && std::ranges::any_of(params_, [this](const Param& param) {
        const at::Tensor tensor = alive(param);
        return tensor.defined() && torch::autograd::impl::post_acc_grad_hooks(tensor) != nullptr;
      });
  for (const Param& param : params_) {
    const at::Tensor tensor = has_hooks ? alive(param) : at::Tensor();
    if (tensor.defined()) at_rest.emplace_back(tensor, param.shard.scalar_type());
  }
  for (size_t i = 0; i < params_.size(); ++i) {
    if (!reduction.has(first_param + i)) continue;
    const at::Tensor shard = reduction.shard(first_param + i);
    at::Tensor& kept = params_[i].kept_part;
    if (reduction.over_replicas()) {
      add_to_grad(params_[i], shard);
    } else {
      kept = kept.defined() ? kept.add_(shard) : shard;
    }
  }
  if (!offload_.pinned) return;
  const c10::impl::VirtualGuardImpl guard(offload_.compute.type());
  copies_to_host_.emplace(offload_.compute.type());
  copies_to_host_->record(guard.getStream(offload_.compute));
}

void ParamGroup::wait_for_gradients() {
  if (const auto copies = std::exchange(copies_to_host_, std::nullopt)) copies->synchronize();
}

void ParamGroup::forget_kept() {
  for (Param& param : params_) {
    param.kept.reset();
    param.kept_part.reset();
  }
}

void ParamGroup::reset_arrivals() {
  for (Param& param : params_) param.arrived = false;
}

void ParamGroup::add_to_grad(Param& param, const at::Tensor& shard) {
  at::Tensor tensor = alive(param);
  if (!tensor.defined()) return;
  const c10::AutoGradMode no_grad(false);
  at::Tensor& grad = tensor.mutable_grad();
  // What reads the values on the host now has to wait for them; others find them after backward.
  const bool is_read =
      grad.defined() || torch::autograd::impl::post_acc_grad_hooks(tensor) != nullptr;
  const at::Tensor home =
      offload_.to_rest_device(shard, param.shard.scalar_type(), /*non_blocking=*/!is_read);
  const at::Tensor wrapped = dtensor::wrap(home, param.sharding);
  if (grad.defined()) {
    grad.add_(wrapped);
  } else {
    grad = wrapped;
  }
  run_hook_at_rest(param, tensor);
}

}  // namespace tessera::fsdp
