#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <span>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "tessera/dtensor/dtensor.h"
#include "tessera/dtensor/visit_tensors.h"

namespace torch::nn {
class Module;
}

/// Modules with sharded parameters. Parameters and buffers change in place: the module's members,
/// its registry and an optimizer's list are handles to the same tensors, and all see the change.
///
///   torch::nn::Linear up(64, 256), down(256, 64);
///   torch::nn::Sequential net(up, torch::nn::ReLU(), down);
///   distribute_module(*net, mesh, [](const std::string& name, torch::nn::Module& module,
///                                    const DeviceMesh& mesh) {
///     auto* linear = module.as<torch::nn::LinearImpl>();
///     if (name == "0") distribute_in_place(linear->weight, mesh, {Shard(0)});
///   });
///
/// Every rank of the mesh makes the same calls.
namespace tessera {

/// Makes a tensor sharded where it is: every handle to it sees it. It keeps requires_grad, and its
/// gradient is distributed alike. A sharded tensor is redistributed. For leaves that no graph in
/// flight has saved.
void distribute_in_place(const at::Tensor& tensor, const DeviceMesh& mesh,
                         std::vector<Placement> placements, const DistributeOptions& options = {});

/// Called for the module and each module inside it, with its name ("" for the module itself); it
/// distributes what it wants to in place.
using PartitionFn =
    std::function<void(const std::string& name, torch::nn::Module& module, const DeviceMesh& mesh)>;

/// Runs `partition`, then replicates the parameters and buffers that it left plain.
void distribute_module(torch::nn::Module& module, const DeviceMesh& mesh,
                       const PartitionFn& partition = {}, const DistributeOptions& options = {});

/// From now on the gradient of each sharded parameter arrives placed as the parameter. Without it a
/// gradient stays as backward left it, often Partial over the axis that cuts the batch, and is
/// reduced at each use: three times by Adam. Before accumulating over several backwards do without.
void reduce_gradients(torch::nn::Module& module);
void reduce_gradients(std::span<const at::Tensor> parameters);

/// Changes the tensors among a module's arguments, or those in its result, in place: distributes,
/// redistributes or takes their local parts.
using BorderFn = std::function<void(torch::nn::Module& module, std::span<at::Tensor> tensors,
                                    const DeviceMesh& mesh)>;

struct DistributeModuleOptions {
  PartitionFn partition = {};
  BorderFn input = {};
  BorderFn output = {};
  DistributeOptions data = {};
};

/// A module and what happens at its borders: C++ modules have no hooks, so this is called in the
/// module's place. `Held` is a module holder (torch::nn::Linear) or a shared_ptr to a module.
template <class Held>
class DistributedModule {
 public:
  DistributedModule(Held module, DeviceMesh mesh, DistributeModuleOptions options)
      : module_(std::move(module)), mesh_(std::move(mesh)), options_(std::move(options)) {
    distribute_module(*module_, mesh_, options_.partition, options_.data);
  }

  /// The input function, the module's forward, the output function.
  template <class... Arguments>
  auto forward(Arguments... given) {
    std::tuple<Arguments...> arguments(std::move(given)...);
    apply(options_.input, arguments);
    auto result = std::apply(
        [this](auto&... argument) { return module_->forward(std::move(argument)...); }, arguments);
    apply(options_.output, result);
    return result;
  }
  template <class... Arguments>
  auto operator()(Arguments... arguments) {
    return forward(std::move(arguments)...);
  }

  /// The module itself, for its parameters, train(), eval() and the like.
  auto& operator*() { return *module_; }
  auto* operator->() { return &*module_; }
  const Held& module() const { return module_; }
  const DeviceMesh& mesh() const { return mesh_; }

 private:
  template <class Value>
  void apply(const BorderFn& border, Value& value) {
    if (!border) return;
    const auto places = dtensor::tensors_in(value);
    std::vector<at::Tensor> tensors;
    for (const at::Tensor* place : places) tensors.push_back(*place);
    border(*module_, tensors, mesh_);
    for (size_t i = 0; i < places.size(); ++i) *places[i] = tensors[i];
  }

  Held module_;
  DeviceMesh mesh_;
  DistributeModuleOptions options_;
};

template <class Held>
requires requires(Held& held) { held.operator->(); }
DistributedModule<Held> distribute_module(Held module, const DeviceMesh& mesh,
                                          DistributeModuleOptions options) {
  return DistributedModule<Held>(std::move(module), mesh, std::move(options));
}

}  // namespace tessera
