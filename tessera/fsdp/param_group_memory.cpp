// Where the shards of a group are stored, and how they are moved.
#include <c10/core/GradMode.h>
#include <c10/core/InferenceMode.h>

#include <algorithm>

#include "tessera/base/errors.h"
#include "tessera/dtensor/dispatch/write_count.h"
#include "tessera/dtensor/dtensor.h"
#include "tessera/dtensor/tensor/sharded_tensor.h"
#include "tessera/fsdp/gather_scheduler.h"
#include "tessera/fsdp/param_group.h"

namespace tessera::fsdp {

void ParamGroup::lay_out(std::vector<ParamShape> shapes) {
  layout_ = std::make_unique<FlatLayout>(std::move(shapes), mesh_.shard_size(), mesh_.shard_rank());
  const auto in_type = [this](std::optional<at::ScalarType> dtype) {
    return std::make_shared<const FlatLayout>(dtype ? layout_->with_dtype(*dtype) : *layout_);
  };
  gather_layout_ = in_type(options_.param_dtype);
  reduce_layout_ = in_type(options_.reduce_dtype ? options_.reduce_dtype : options_.param_dtype);
  switches_dtype_ = false;
  for (size_t i = 0; i < params_.size(); ++i) {
    switches_dtype_ = switches_dtype_ || compute_dtype(i) != layout_->param(i).dtype;
  }
}

void ParamGroup::make_pieces() {
  const c10::InferenceMode ordinary(false);  // inference tensors have no version counter
  pieces_.clear();
  for (const Slot& slot : layout_->slots()) {
    pieces_.push_back(offload_.zeros(slot.piece, slot.dtype));
    if (!offload_.on_meta()) dtensor::count_writes_to_memory(pieces_.back());
  }
  for (size_t i = 0; i < params_.size(); ++i) {
    params_[i].shard = layout_->shard_in(i, pieces_[layout_->slot_of(i)]);
  }
}

void ParamGroup::to_empty(c10::Device device) {
  if (!offload_.on_meta()) return;
  offload_ = OffloadPlacement::of(device, mesh_.mesh(), options_);
  make_pieces();
  for (size_t i = 0; i < params_.size(); ++i) {
    const at::Tensor tensor = alive(params_[i]);
    if (tensor.defined()) hold(tensor, i);
  }
}

void ParamGroup::replace_shards(const std::vector<at::Tensor>& shards) {
  scheduler_->leave_failed_backward();
  require(!scheduler_->in_backward(),
          "parameters of fully_shard change their type or device while ", "backward runs");
  const c10::AutoGradMode no_grad(false);
  std::vector<ParamShape> shapes;
  bool same_memory = true;
  for (size_t i = 0; i < params_.size(); ++i) {
    const Param& param = params_[i];
    require(shards[i].sizes() == param.shard.sizes(), "a shard of ", shape_text(shards[i].sizes()),
            " in the place of one of ", shape_text(param.shard.sizes()));
    require(shards[i].device() == shards[0].device(), "parameters of one fully_shard group on ",
            shards[0].device().str(), " and ", shards[i].device().str(),
            "; move all of them together");
    require(!param.kept.defined() && !param.kept_part.defined(),
            "parameters of fully_shard change their type or device while gradients are kept back; "
            "reduce them before");
    shapes.push_back(layout_->param(i));
    shapes.back().dtype = shards[i].scalar_type();
    same_memory = same_memory && shards[i].device() == param.shard.device() &&
                  shards[i].scalar_type() == param.shard.scalar_type();
  }
  bucket_->release();
  if (!same_memory) {
    lay_out(std::move(shapes));
    offload_ = OffloadPlacement::of(shards[0].device(), mesh_.mesh(), options_);
    make_pieces();
    scheduler_->split(*bucket_);  // the bucket's layout has the old dtypes
  }
  for (size_t i = 0; i < params_.size(); ++i) {
    Param& param = params_[i];
    if (!shards[i].is_same(param.shard)) param.shard.copy_(shards[i]);
    if (same_memory) continue;
    param.sharding = param.sharding.with_dtype(static_cast<DType>(shards[i].scalar_type()));
    const at::Tensor tensor = alive(param);
    if (!tensor.defined()) continue;
    const at::Tensor grad = tensor.grad();
    tensor.mutable_grad().reset();
    hold(tensor, i);
    if (!grad.defined()) continue;
    const at::Tensor home = offload_.to_rest_device(to_local(grad), param.shard.scalar_type());
    tensor.mutable_grad() = dtensor::wrap(home, param.sharding);
  }
}

void ParamGroup::replace_parameter(size_t index, const at::Tensor& tensor) {
  const c10::AutoGradMode no_grad(false);
  hold(tensor, index);
}

}  // namespace tessera::fsdp
