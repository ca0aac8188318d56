#include "tessera/parallel/parallelize_module.h"

#include <torch/nn/module.h>

#include "tessera/base/errors.h"
#include "tessera/dtensor/lazy.h"
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

/// A parameter may be sharded already, on this mesh.
void check_parameter(const std::string& path, const at::Tensor& tensor, const DeviceMesh& mesh) {
  if (!is_dtensor(tensor)) return;
  require(dtensor::lazy_local(tensor) == nullptr, "parallelize_module: ", path,
          " is a parameter of fully_shard; call parallelize_module first");
  require(device_mesh(tensor) == mesh, "parallelize_module on mesh ", mesh, ": ", path, " is ",
          sharding(tensor), ", on another mesh");
}

}  // namespace

void parallelize_module(torch::nn::Module& module, const DeviceMesh& mesh, const ParallelPlan& plan,
                        const ParallelizeOptions& options) {
  const std::string axis = axis_to_split(mesh, options.axis);
  for (const auto& item : module.named_parameters()) {
    check_parameter(item.key(), item.value(), mesh);
  }
  for (const auto& parameter : parallel::resolve_plan(module, mesh, axis, plan)) {
    std::vector<Placement> placements(static_cast<size_t>(mesh.ndim()));
    if (is_dtensor(parameter.tensor)) placements = tessera::placements(parameter.tensor);
    placements[static_cast<size_t>(mesh.axis(axis))] = parameter.placement;
    distribute_(parameter.tensor, mesh, std::move(placements), options.data);
    if (parameter.anchors.empty()) continue;
    dtensor::set_weight_style(parameter.tensor, parallel::anchored_style(parameter.anchors));
  }
  distribute_module(module, mesh, {}, options.data);  // the rest is replicated
  if (options.reduce_gradients) reduce_gradients(module);
}

}  // namespace tessera
