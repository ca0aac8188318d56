#include "tessera/module/to_empty.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <c10/core/GradMode.h>
#include <torch/nn/module.h>

#include "tessera/base/errors.h"
#include "tessera/dtensor/dtensor.h"
#include "tessera/dtensor/tensor/lazy.h"
#include "tessera/dtensor/tensor/sharded_tensor.h"
#include "tessera/module/forget_accumulator.h"

namespace tessera {
namespace {

void fill_one(const at::Tensor& tensor, c10::Device device) {
  if (!tensor.defined() || !tensor.device().is_meta()) return;
  dtensor::LazyLocal* lazy = dtensor::lazy_local(tensor);
  if (lazy != nullptr && lazy->to_empty(device)) return;
  if (is_dtensor(tensor)) {
    const Sharding as = sharding(tensor);
    const at::Tensor local = to_local(tensor.detach());
    dtensor::become(tensor, at::empty_like(local, local.options().device(device)), as);
  } else {
    const at::Tensor made = at::empty_like(tensor, tensor.options().device(device));
    tensor.unsafeGetTensorImpl()->shallow_copy_from(made.getIntrusivePtr());
  }
  module::forget_accumulator(tensor);
}

}  // namespace

void to_empty(torch::nn::Module& module, c10::Device device) {
  require(!device.is_meta(), "to_empty on meta, where tensors have no memory");
  const c10::AutoGradMode no_grad(false);
  for (const at::Tensor& parameter : module.parameters()) fill_one(parameter, device);
  for (const at::Tensor& buffer : module.buffers()) fill_one(buffer, device);
}

}  // namespace tessera
