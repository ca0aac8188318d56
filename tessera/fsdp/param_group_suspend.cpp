// Parameters of a group as ordinary tensors for a while: tensor parallelism after fully_shard.
#include <ATen/ops/empty.h>
#include <c10/core/GradMode.h>

#include "tessera/base/errors.h"
#include "tessera/dtensor/dtensor.h"
#include "tessera/fsdp/gather_scheduler.h"
#include "tessera/fsdp/param_group.h"
#include "tessera/module/forget_accumulator.h"

namespace tessera::fsdp {
namespace {

/// As a tensor that a program made: the local part of `like`, without memory.
at::Tensor on_meta(const Sharding& whole) {
  const auto shape = whole.local_shape();
  return at::empty(at::IntArrayRef(shape.data(), shape.size()),
                   at::TensorOptions(at::kMeta).dtype(static_cast<at::ScalarType>(whole.dtype())));
}

}  // namespace

/// Values are gathered in the dtype at rest, not in the compute dtype that ops see.
void ParamGroup::suspend() {
  scheduler_->leave_failed_backward();
  require(!scheduler_->in_backward() && !computes(),
          "parameters of fully_shard are sharded over further axes while a step runs");
  for (const Param& param : params_) {
    const at::Tensor tensor = alive(param);
    require(!(tensor.defined() && tensor.grad().defined()) && !param.kept.defined() &&
                !param.kept_part.defined(),
            "parameters of fully_shard are sharded over further axes while they have gradients; "
            "reset them before");
  }
  const c10::AutoGradMode no_grad(false);
  std::vector<at::Tensor> values;
  for (size_t i = 0; i < params_.size(); ++i) {
    const Param& param = params_[i];
    if (!offload_.on_meta()) {
      values.push_back(unsharded_from(i, shards(i)));
    } else if (param.inner) {
      values.push_back(dtensor::wrap(on_meta(*param.inner), *param.inner));
    } else {
      values.push_back(on_meta(param.sharding.with_placements(
          std::vector<Placement>(static_cast<size_t>(param.sharding.mesh().ndim())))));
    }
  }
  bucket_->release();
  for (size_t i = 0; i < params_.size(); ++i) {
    const at::Tensor tensor = alive(params_[i]);
    // The program may have dropped one; the group keeps its place.
    suspended_.push_back(tensor.defined() ? tensor : values[i]);
    if (!tensor.defined()) continue;
    if (params_[i].inner) {
      dtensor::become(tensor, to_local(values[i]), *params_[i].inner);
    } else {
      dtensor::become_plain(tensor, values[i]);
    }
    module::forget_accumulator(tensor);
  }
}

void ParamGroup::resume() {
  ensure(suspended_.size() == params_.size(), "a group resumes that is not suspended");
  std::vector<Taken> taken;
  for (size_t i = 0; i < params_.size(); ++i) {
    taken.push_back({suspended_[i], params_[i].dim, /*source=*/std::nullopt});
  }
  suspended_.clear();
  params_.clear();
  take(taken);
  scheduler_->split(*bucket_);  // its layout is that of the former shapes
}

}  // namespace tessera::fsdp
