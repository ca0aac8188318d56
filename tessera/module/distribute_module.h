#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "tessera/base/api.h"
#include "tessera/dtensor/dtensor.h"
#include "tessera/module/bordered_module.h"

namespace torch::nn {
class Module;
}

/// Modules with sharded parameters. Parameters and buffers change in place: the module's members,
/// its registry and an optimizer's list reference the same tensors, and all see the change.
///
///   torch::nn::Linear up(64, 256), down(256, 64);
///   torch::nn::Sequential net(up, torch::nn::ReLU(), down);
///   distribute_module(*net, mesh, [](const std::string& name, torch::nn::Module& module,
///                                    const DeviceMesh& mesh) {
///     auto* linear = module.as<torch::nn::LinearImpl>();
///     if (name == "0") distribute_(linear->weight, mesh, {Shard(0)});
///   });
///
/// Must be called identically on every rank of the mesh.
namespace tessera {

/// Shards a tensor in place: all references to it see the change. It keeps requires_grad, and its
/// gradient is distributed as well. A sharded tensor is redistributed. For leaves that are not
/// saved in a pending autograd graph.
TESSERA_API void distribute_(const at::Tensor& tensor, const DeviceMesh& mesh,
                             std::vector<Placement> placements,
                             const DistributeOptions& options = {});

/// The same for several tensors, each once: small ones share messages.
TESSERA_API void distribute_(std::span<const at::Tensor> tensors, const DeviceMesh& mesh,
                             const std::vector<Placement>& placements,
                             const DistributeOptions& options = {});

/// Called for the module ("") and each submodule, with its name; distributes parameters in place.
using PartitionFn =
    std::function<void(const std::string& name, torch::nn::Module& module, const DeviceMesh& mesh)>;

/// Runs `partition`, then replicates the parameters and buffers that it left plain, in buckets of
/// 16 MiB a dtype: two messages each, whatever the number of tensors.
TESSERA_API void distribute_module(torch::nn::Module& module, const DeviceMesh& mesh,
                                   const PartitionFn& partition = {},
                                   const DistributeOptions& options = {});

/// From now on the gradient of each sharded parameter has the parameter's placements. Without it a
/// gradient stays as backward produced it, often Partial over the axis that shards the batch, and
/// is reduced at each use: three times by Adam. Not for gradient accumulation over several
/// backwards, where one reduction at the end is cheaper. Small gradients share messages, which are
/// sent at the end of backward; hooks see the unreduced gradients.
TESSERA_API void reduce_gradients(torch::nn::Module& module);
TESSERA_API void reduce_gradients(std::span<const at::Tensor> parameters);

/// Modifies the tensors among a module's arguments, or in its result, in place: distributes,
/// redistributes, or takes their local parts.
using BorderFn = std::function<void(torch::nn::Module& module, std::span<at::Tensor> tensors,
                                    const DeviceMesh& mesh)>;

struct TESSERA_API DistributeModuleOptions {
  PartitionFn partition = {};
  BorderFn input = {};
  BorderFn output = {};
  DistributeOptions data = {};
};

namespace dtensor {

/// The caller's function as a border; empty if there is none.
TESSERA_API std::function<void(std::span<at::Tensor* const>)> border_of(const BorderFn& border,
                                                                        torch::nn::Module& module,
                                                                        const DeviceMesh& mesh);

}  // namespace dtensor

/// distribute_module of a holder, with border functions. Call the returned object in place of the
/// module.
template <class Held>
requires requires(Held& held) { held.operator->(); }
BorderedModule<Held> distribute_module(Held module, const DeviceMesh& mesh,
                                       const DistributeModuleOptions& options) {
  distribute_module(*module, mesh, options.partition, options.data);
  auto input = dtensor::border_of(options.input, *module, mesh);
  auto output = dtensor::border_of(options.output, *module, mesh);
  return BorderedModule<Held>(std::move(module), std::move(input), std::move(output));
}

}  // namespace tessera
