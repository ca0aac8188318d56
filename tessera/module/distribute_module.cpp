#include "tessera/module/distribute_module.h"

#include <c10/core/GradMode.h>
#include <torch/csrc/autograd/variable.h>
#include <torch/nn/module.h>

#include "tessera/base/errors.h"
#include "tessera/dtensor/lazy.h"
#include "tessera/dtensor/sharded_tensor.h"
#include "tessera/module/forget_accumulator.h"

namespace tessera {
namespace {

at::Tensor distributed(const at::Tensor& tensor, const DeviceMesh& mesh,
                       const std::vector<Placement>& placements, const DistributeOptions& options) {
  if (!is_dtensor(tensor)) return distribute_tensor(tensor.detach(), mesh, placements, options);
  return redistribute(tensor.detach(), mesh, placements);
}

/// Of a parameter of fully_shard, the mesh of its other axes.
bool is_on_mesh(const at::Tensor& tensor, const DeviceMesh& mesh) {
  const dtensor::LazyLocal* lazy = dtensor::lazy_local(tensor);
  if (lazy == nullptr) return device_mesh(tensor) == mesh;
  const auto unsharded = lazy->unsharded_sharding();
  return unsharded && unsharded->mesh() == mesh;
}

}  // namespace

void distribute_(const at::Tensor& tensor, const DeviceMesh& mesh,
                 std::vector<Placement> placements, const DistributeOptions& options) {
  require(tensor.defined(), "distribute_: an undefined tensor");
  require(tensor.is_leaf() && !tensor.is_view(), "distribute_ needs a leaf, not a ",
          tensor.is_view() ? "view" : "computed tensor", " of shape ", shape_text(tensor.sizes()));
  const c10::AutoGradMode no_grad(false);
  const at::Tensor made = distributed(tensor, mesh, placements, options);
  at::Tensor grad = tensor.grad();
  if (grad.defined()) grad = distributed(grad, mesh, placements, options);
  dtensor::become(tensor, to_local(made), sharding(made));
  module::forget_accumulator(tensor);
  if (grad.defined()) tensor.mutable_grad() = grad;
}

void distribute_module(torch::nn::Module& module, const DeviceMesh& mesh,
                       const PartitionFn& partition, const DistributeOptions& options) {
  require(mesh.defined(), "distribute_module needs a mesh");
  if (partition) {
    for (const auto& child : module.named_modules(std::string(), /*include_self=*/true)) {
      partition(child.key(), *child.value(), mesh);
    }
  }
  const std::vector<Placement> replicated(static_cast<size_t>(mesh.ndim()));
  const auto replicate = [&](const auto& named, const char* what) {
    for (const auto& item : named) {
      const at::Tensor& tensor = item.value();
      if (!tensor.defined()) continue;
      if (!is_dtensor(tensor)) {
        distribute_(tensor, mesh, replicated, options);
        continue;
      }
      require(is_on_mesh(tensor, mesh), "distribute_module: ", what, " ", item.key(), " is ",
              sharding(tensor), ", on another mesh than ", mesh,
              "; a module is distributed once, redistribute its parameters to move them");
    }
  };
  replicate(module.named_parameters(), "parameter");
  replicate(module.named_buffers(), "buffer");
}

std::function<void(std::span<at::Tensor* const>)> dtensor::border_of(const BorderFn& border,
                                                                     torch::nn::Module& module,
                                                                     const DeviceMesh& mesh) {
  if (!border) return {};
  return [border, &module, mesh](std::span<at::Tensor* const> places) {
    std::vector<at::Tensor> tensors;
    for (const at::Tensor* place : places) tensors.push_back(*place);
    border(module, tensors, mesh);
    for (size_t i = 0; i < places.size(); ++i) *places[i] = tensors[i];
  };
}

}  // namespace tessera
