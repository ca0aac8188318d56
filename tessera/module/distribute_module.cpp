#include "tessera/module/distribute_module.h"

#include <c10/core/GradMode.h>
#include <torch/csrc/autograd/variable.h>
#include <torch/nn/module.h>

#include <unordered_set>
#include <utility>

#include "tessera/base/errors.h"
#include "tessera/dtensor/buckets.h"
#include "tessera/dtensor/distribute_all.h"
#include "tessera/dtensor/tensor/lazy.h"
#include "tessera/dtensor/tensor/sharded_tensor.h"
#include "tessera/module/forget_accumulator.h"

namespace tessera {
namespace {

void require_distributable(const at::Tensor& tensor) {
  require(tensor.defined(), "distribute_: an undefined tensor");
  require(tensor.is_leaf() && !tensor.is_view(), "distribute_ needs a leaf, not a ",
          tensor.is_view() ? "view" : "computed tensor", " of shape ", shape_text(tensor.sizes()));
}

/// Distributes tensors and their gradients in place, some at a time: the plain ones share messages.
class InPlaceDistribution {
 public:
  InPlaceDistribution(const DeviceMesh& mesh, const std::vector<Placement>& placements,
                      const DistributeOptions& options)
      : mesh_(mesh), placements_(placements), options_(options) {}

  void add(const at::Tensor& tensor) {
    tensors_.push_back(tensor);
    bytes_ += static_cast<int64_t>(tensor.nbytes());
    if (bytes_ >= dtensor::kBucketBytes) flush();
  }

  void flush() {
    std::vector<at::Tensor> values;
    for (const at::Tensor& tensor : tensors_) {
      values.push_back(tensor.detach());
      if (tensor.grad().defined()) values.push_back(tensor.grad().detach());
    }
    const std::vector<at::Tensor> made = distributed(values);
    size_t next = 0;
    for (const at::Tensor& tensor : tensors_) {
      const bool has_grad = tensor.grad().defined();
      const at::Tensor& value = made[next++];
      dtensor::become(tensor, to_local(value), sharding(value));
      module::forget_accumulator(tensor);
      if (has_grad) tensor.mutable_grad() = made[next++];
    }
    tensors_.clear();
    bytes_ = 0;
  }

 private:
  std::vector<at::Tensor> distributed(std::span<const at::Tensor> values) const {
    std::vector<at::Tensor> out(values.size());
    std::vector<at::Tensor> plain;
    for (size_t i = 0; i < values.size(); ++i) {
      if (is_dtensor(values[i])) {
        out[i] = redistribute(values[i], mesh_, placements_);
      } else {
        plain.push_back(values[i]);
      }
    }
    auto made = dtensor::distribute_all(plain, mesh_, placements_, options_);
    size_t next = 0;
    for (at::Tensor& value : out) {
      if (!value.defined()) value = std::move(made[next++]);
    }
    return out;
  }

  const DeviceMesh& mesh_;
  const std::vector<Placement>& placements_;
  const DistributeOptions& options_;
  std::vector<at::Tensor> tensors_;
  int64_t bytes_ = 0;
};

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
  distribute_(std::span(&tensor, 1), mesh, placements, options);
}

void distribute_(std::span<const at::Tensor> tensors, const DeviceMesh& mesh,
                 const std::vector<Placement>& placements, const DistributeOptions& options) {
  for (const at::Tensor& tensor : tensors) require_distributable(tensor);
  const c10::AutoGradMode no_grad(false);
  InPlaceDistribution distribution(mesh, placements, options);
  std::unordered_set<const c10::TensorImpl*> seen;
  for (const at::Tensor& tensor : tensors) {
    if (seen.insert(tensor.unsafeGetTensorImpl()).second) distribution.add(tensor);
  }
  distribution.flush();
}

void distribute_module(torch::nn::Module& module, const DeviceMesh& mesh,
                       const PartitionFn& partition, const DistributeOptions& options) {
  require(mesh.defined(), "distribute_module needs a mesh");
  if (partition) {
    for (const auto& child : module.named_modules(std::string(), /*include_self=*/true)) {
      partition(child.key(), *child.value(), mesh);
    }
  }
  std::vector<at::Tensor> plain;
  const auto collect = [&](const auto& named, const char* what) {
    for (const auto& item : named) {
      const at::Tensor& tensor = item.value();
      if (!tensor.defined()) continue;
      if (!is_dtensor(tensor)) {
        plain.push_back(tensor);
        continue;
      }
      require(is_on_mesh(tensor, mesh), "distribute_module: ", what, " ", item.key(), " is ",
              sharding(tensor), ", on another mesh than ", mesh,
              "; a module is distributed once, redistribute its parameters to move them");
    }
  };
  collect(module.named_parameters(), "parameter");
  collect(module.named_buffers(), "buffer");
  const std::vector<Placement> replicated(static_cast<size_t>(mesh.ndim()));
  distribute_(plain, mesh, replicated, options);
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
