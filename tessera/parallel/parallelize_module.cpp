#include "tessera/parallel/parallelize_module.h"

#include <torch/nn/module.h>

#include <map>

#include "tessera/base/errors.h"
#include "tessera/dtensor/tensor/lazy.h"
#include "tessera/module/distribute_module.h"
#include "tessera/parallel/resolve_plan.h"

namespace tessera {
namespace {

std::string axis_to_split(const DeviceMesh& mesh, const std::string& asked) {
  require(mesh.defined(), "parallelize_module needs a mesh");
  if (asked.empty()) {
    require(mesh.ndim() == 1, "parallelize_module on mesh ", mesh,
            ": which axis? Give mesh[\"tp\"], or {.axis = \"tp\"} to replicate over the others");
    return mesh.axis_name(0);
  }
  require(mesh.has_axis(asked), "parallelize_module: mesh ", mesh, " has no axis '", asked, "'");
  return asked;
}

/// A parameter of fully_shard: it must be possible to add the mesh's axes to those that it has.
void check_lazy(const std::string& path, const at::Tensor& tensor, dtensor::LazyLocal& lazy,
                const DeviceMesh& mesh) {
  require(lazy.group() != nullptr && !tensor.grad().defined(), "parallelize_module: ", path,
          " is a parameter of fully_shard with a gradient; reset it before");
  if (const auto inner = lazy.unsharded_sharding()) {
    require(inner->mesh() == mesh, "parallelize_module on mesh ", mesh, ": ", path, " is ",
            sharding(tensor), ", parallelized on another mesh");
    return;
  }
  const DeviceMesh& data = device_mesh(tensor);
  for (const MeshAxis& axis : mesh.axes()) {
    require(!data.has_axis(axis.name), "parallelize_module on mesh ", mesh, ": fully_shard has ",
            path, " on axis ", axis.name, " already; give the tensor-parallel axis alone");
  }
  DeviceMesh::concatenate({data, mesh});  // throws if they are not of one mesh
}

/// A parameter may be sharded already, on this mesh.
void check_parameter(const std::string& path, const at::Tensor& tensor, const DeviceMesh& mesh) {
  if (!is_dtensor(tensor)) return;
  if (auto* lazy = dtensor::lazy_local(tensor)) return check_lazy(path, tensor, *lazy, mesh);
  require(device_mesh(tensor) == mesh, "parallelize_module on mesh ", mesh, ": ", path, " is ",
          sharding(tensor), ", on another mesh");
}

using PlacedByTensor = std::map<const c10::TensorImpl*, const parallel::PlacedParameter*>;

/// What the plan does not name is replicated.
class Distributor {
 public:
  Distributor(const DeviceMesh& mesh, const std::string& axis, const DistributeOptions& data,
              const std::vector<parallel::PlacedParameter>& planned)
      : mesh_(mesh), axis_(static_cast<size_t>(mesh.axis(axis))), data_(data) {
    for (const auto& parameter : planned) {
      planned_.emplace(parameter.tensor.unsafeGetTensorImpl(), &parameter);
    }
  }

  void distribute(const at::Tensor& tensor) const {
    const auto found = planned_.find(tensor.unsafeGetTensorImpl());
    const bool is_sharded = is_dtensor(tensor);
    if (found == planned_.end() && is_sharded) return;
    std::vector<Placement> placements(static_cast<size_t>(mesh_.ndim()));
    if (is_sharded) placements = tessera::placements(tensor);
    if (found != planned_.end()) placements[axis_] = found->second->placement;
    distribute_(tensor, mesh_, std::move(placements), data_);
    if (found == planned_.end() || found->second->anchors.empty()) return;
    dtensor::set_weight_style(tensor, parallel::anchored_style(found->second->anchors));
  }

  /// The parameters of a group of fully_shard, which are unsharded meanwhile.
  void distribute(dtensor::LazyGroup& group, const std::vector<at::Tensor>& parameters) const {
    group.suspend();
    try {
      for (const at::Tensor& parameter : parameters) distribute(parameter);
    } catch (...) {
      group.resume();
      throw;
    }
    group.resume();
  }

 private:
  const DeviceMesh& mesh_;
  size_t axis_;
  const DistributeOptions& data_;
  PlacedByTensor planned_;
};

/// Parameters by the group of fully_shard that holds them, in the order of the parameters; nullptr:
/// none.
using Grouped =
    std::vector<std::pair<std::shared_ptr<dtensor::LazyGroup>, std::vector<at::Tensor>>>;

Grouped by_group(const torch::nn::Module& module) {
  Grouped out;
  for (const at::Tensor& parameter : module.parameters()) {
    auto* lazy = dtensor::lazy_local(parameter);
    const auto group = lazy != nullptr ? lazy->group() : nullptr;
    auto at = out.begin();
    while (at != out.end() && at->first != group) ++at;
    if (at == out.end()) at = out.insert(at, {group, {}});
    at->second.push_back(parameter);
  }
  return out;
}

}  // namespace

void parallelize_module(torch::nn::Module& module, const DeviceMesh& mesh, const ParallelPlan& plan,
                        const ParallelizeOptions& options) {
  const std::string axis = axis_to_split(mesh, options.axis);
  for (const auto& item : module.named_parameters()) {
    check_parameter(item.key(), item.value(), mesh);
  }
  const auto planned = parallel::resolve_plan(module, mesh, axis, plan);
  const Distributor distributor(mesh, axis, options.data, planned);
  for (const auto& [group, parameters] : by_group(module)) {
    if (group != nullptr) {
      distributor.distribute(*group, parameters);
    } else {
      for (const at::Tensor& parameter : parameters) distributor.distribute(parameter);
    }
  }
  distribute_module(module, mesh, {}, options.data);  // buffers
  if (options.reduce_gradients) reduce_gradients(module);
}

}  // namespace tessera
