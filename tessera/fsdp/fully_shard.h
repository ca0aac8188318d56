#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <variant>
#include <vector>

#include "tessera/dtensor/dtensor.h"
#include "tessera/fsdp/control.h"
#include "tessera/fsdp/mesh_kinds.h"
#include "tessera/fsdp/training_state.h"
#include "tessera/mesh/device_mesh.h"

namespace torch::nn {
class Module;
}

/// Fully sharded data parallelism, by first touch. Parameters become sharded in place; when an op
/// first touches one of a group, the group is gathered, and after its last use it is let go. No
/// hooks, no wrappers: the module, its forward and the optimizer stay as they are.
///
///   for (auto& block : model->blocks) fully_shard(*block, mesh);   // a group each
///   fully_shard(*model, mesh);                                     // a group of the rest
///   torch::optim::AdamW optimizer(model->parameters());            // works on the shards
///   loss(model(my_part_of_the_batch)).backward();                  // gradients arrive averaged
///
/// Activations are plain tensors: each rank computes with its part of the batch, and all ranks run
/// the same ops. A gradient is the mean of the ranks' gradients, so a loss that is a mean over
/// equal parts gives what one rank gives with the whole batch. docs/fsdp.md tells the story.
namespace tessera {

/// Types of parameters and gradients while they travel and compute; at rest they keep their own.
/// Inputs and outputs are cast where fully_shard gives back what to call (sharded_module.h); else
/// they are the caller's to cast: x.to(param_dtype).
struct MixedPrecisionPolicy {
  std::optional<at::ScalarType> param_dtype = std::nullopt;  ///< gathered and computed with
  /// Of the sum over the ranks; by default param_dtype.
  std::optional<at::ScalarType> reduce_dtype = std::nullopt;
  std::optional<at::ScalarType> output_dtype = std::nullopt;  ///< of the module's outputs
  bool cast_forward_inputs = true;                            ///< to param_dtype
};

/// Shards, their gradients and with them the optimizer's state rest on the host; parameters are
/// brought to the mesh's device when they are gathered. The optimizer computes on the host.
struct CPUOffloadPolicy {
  bool pin_memory = true;  ///< page-locked, where the device is an accelerator: faster copies
};

struct FullyShardOptions {
  /// Let go after forward, and gather again in backward. By default true, but false for a module
  /// that has groups inside: what is left of it is used at both ends. A number of ranks, which
  /// divides that of the shard axis: after forward each rank keeps the part that it would have of
  /// so many, and backward gathers among so many neighbours.
  std::optional<std::variant<bool, int>> reshard_after_forward = std::nullopt;
  /// The dim to cut of a parameter; none or no function: dim 0.
  std::function<std::optional<int>(const std::string& name, const at::Tensor& parameter)>
      shard_dim = {};
  /// The mesh of a parameter that lies on another than the call's, as that of experts does: one
  /// group for each. Its gradients are divided as those of the call's mesh: an expert's ranks bring
  /// addends of a mean over all ranks. None or no function: the call's.
  std::function<std::optional<DeviceMesh>(const std::string& name, const at::Tensor& parameter)>
      shard_mesh = {};
  /// Parameters that are left as they are, whose gradients are the caller's matter.
  std::vector<at::Tensor> ignored_params = {};
  /// What the sum of the ranks' gradients is divided by; by default the number of ranks.
  std::optional<double> gradient_divide_factor = std::nullopt;
  /// The part of it that gradients are divided by before they are summed, the rest after. By
  /// default 1, but about its root where they are summed as float16, whose range a sum leaves.
  std::optional<double> gradient_predivide_factor = std::nullopt;
  MixedPrecisionPolicy mp_policy = {};
  std::optional<CPUOffloadPolicy> offload_policy = std::nullopt;
  /// Groups that follow each other in a step share their collectives as long as they gather at most
  /// this many bytes together; 0: never. By default what the cost model says of the mesh: where a
  /// message would take longer to start than it should beside what it carries. Alike on all ranks.
  std::optional<int64_t> merge_bytes = std::nullopt;
  /// Whose values count, as an index into the mesh's ranks; none: every rank's own.
  DistributeOptions data = {};
};

/// Makes one group of the module's parameters that no group holds yet. The mesh has one axis, over
/// which they are cut, or two: replicas of the first, cut over the second. Parameters that are
/// sharded already, on another mesh of the same world, keep that: tensor parallelism.
void fully_shard(torch::nn::Module& module, const DeviceMesh& mesh,
                 const FullyShardOptions& options = {});
/// The same on a mesh that says itself what it does to parameters.
void fully_shard(torch::nn::Module& module, const DataParallelMesh& mesh,
                 const FullyShardOptions& options = {});
/// The same for a list of tensors.
void fully_shard(std::span<const at::Tensor> parameters, const DeviceMesh& mesh,
                 const FullyShardOptions& options = {});

/// fully_shard(module, ReplicateMesh(mesh)): whole parameters on every rank; only gradients are
/// reduced, group by group while backward runs.
void replicate(torch::nn::Module& module, const DeviceMesh& mesh,
               const FullyShardOptions& options = {});

/// What is gathered on this rank, by all groups of the mesh's world.
struct GatheredMemory {
  int64_t bytes = 0;
  int64_t peak_bytes = 0;  ///< since the last reset
};
GatheredMemory gathered_memory(const DeviceMesh& mesh);
void reset_peak_gathered_memory(const DeviceMesh& mesh);

/// One group, for tests and reports.
struct ShardedGroupInfo {
  size_t parameters = 0;
  int64_t gathered_bytes = 0;  ///< while it is gathered
  bool gathered = false;
  TrainingState state = TrainingState::idle;
  /// The merged group that it travels in: groups with the same number share their collectives.
  size_t merged = 0;
  int64_t merged_bytes = 0;  ///< gathered_bytes of all of that
};
/// The groups of the module's parameters, in their order.
std::vector<ShardedGroupInfo> sharded_groups(torch::nn::Module& module);

}  // namespace tessera
