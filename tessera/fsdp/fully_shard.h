#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <variant>
#include <vector>

#include "tessera/base/api.h"
#include "tessera/dtensor/dtensor.h"
#include "tessera/fsdp/buffers/mesh_kinds.h"
#include "tessera/fsdp/control.h"
#include "tessera/fsdp/training_state.h"
#include "tessera/mesh/device_mesh.h"

namespace torch::nn {
class Module;
}

/// Fully sharded data parallelism, triggered by first use. Parameters are sharded in place. A group
/// is gathered when an op first uses one of its parameters and resharded after its last use. There
/// are no hooks and no wrappers: the module, its forward and the optimizer are unchanged.
///
///   for (auto& block : model->blocks) fully_shard(*block, mesh);   // a group each
///   fully_shard(*model, mesh);                                     // a group of the rest
///   torch::optim::AdamW optimizer(model->parameters());            // works on the shards
///   loss(model(my_part_of_the_batch)).backward();                  // gradients arrive averaged
///
/// Activations are plain tensors: each rank computes with its part of the batch, and all ranks run
/// the same ops. A gradient is the mean of the ranks' gradients, so a loss that is a mean over
/// equal parts gives the gradients of one rank with the whole batch. See docs/fsdp.md.
namespace tessera {

/// Dtypes of parameters and gradients in communication and compute; shards keep their own. Inputs
/// and outputs are cast only by the callable that fully_shard returns (sharded_module.h); otherwise
/// the caller casts them: x.to(param_dtype).
struct TESSERA_API MixedPrecisionPolicy {
  std::optional<at::ScalarType> param_dtype = std::nullopt;  ///< of gathering and compute
  /// Dtype of the gradient reduction; param_dtype by default.
  std::optional<at::ScalarType> reduce_dtype = std::nullopt;
  std::optional<at::ScalarType> output_dtype = std::nullopt;  ///< of the module's outputs
  bool cast_forward_inputs = true;                            ///< to param_dtype
};

/// Keeps shards, their gradients and hence the optimizer's state on the host. Parameters are copied
/// to the mesh's device when they are gathered. The optimizer computes on the host.
struct TESSERA_API CPUOffloadPolicy {
  bool pin_memory = true;  ///< page-locked if the device is an accelerator: faster copies
};

struct TESSERA_API FullyShardOptions {
  /// Reshard after forward, and gather again in backward. Default: true, but false for a module
  /// that contains other groups, since its remaining parameters are used at both ends of forward.
  /// An integer n, which must divide the size of the shard axis: after forward each rank keeps its
  /// shard of an n-way split, and backward gathers among n neighbours.
  std::optional<std::variant<bool, int>> reshard_after_forward = std::nullopt;
  /// The dim on which a parameter is sharded. No value or no function: dim 0.
  std::function<std::optional<int>(const std::string& name, const at::Tensor& parameter)>
      shard_dim = {};
  /// The mesh of a parameter that uses another mesh than the call's, such as an expert's; each mesh
  /// becomes a group. Gradients are divided as on the call's mesh, because the ranks of an expert
  /// hold addends of a mean over all ranks. No value or no function: the call's mesh.
  std::function<std::optional<DeviceMesh>(const std::string& name, const at::Tensor& parameter)>
      shard_mesh = {};
  /// Parameters that are left untouched; the caller handles their gradients.
  std::vector<at::Tensor> ignored_params = {};
  /// Divisor of the summed gradients; the number of ranks by default.
  std::optional<double> gradient_divide_factor = std::nullopt;
  /// The factor of that divisor that is applied before the sum; the rest is applied after. Default:
  /// 1, but about the square root of the divisor for float16 reductions, where a sum may overflow.
  std::optional<double> gradient_predivide_factor = std::nullopt;
  MixedPrecisionPolicy mp_policy = {};
  std::optional<CPUOffloadPolicy> offload_policy = std::nullopt;
  /// Consecutive groups of a step share collectives while they gather at most this many bytes
  /// together; 0 disables merging. Default: the cost model's size for the mesh below which a
  /// message is latency-bound. Must be identical on all ranks.
  std::optional<int64_t> merge_bytes = std::nullopt;
  /// The rank, as an index into the mesh, whose values are used; no value: each rank uses its own.
  DistributeOptions data = {};
};

/// Makes one group of the module's parameters that are in no group yet. On a one-axis mesh they are
/// sharded; on a two-axis mesh they are replicated over the first axis and sharded over the second.
/// Parameters already sharded on another mesh of the same world (tensor parallelism) keep those
/// placements in addition.
TESSERA_API void fully_shard(torch::nn::Module& module, const DeviceMesh& mesh,
                             const FullyShardOptions& options = {});
/// Overload for a mesh whose type determines how parameters are distributed.
TESSERA_API void fully_shard(torch::nn::Module& module, const DataParallelMesh& mesh,
                             const FullyShardOptions& options = {});
/// Overload for a list of tensors.
TESSERA_API void fully_shard(std::span<const at::Tensor> parameters, const DeviceMesh& mesh,
                             const FullyShardOptions& options = {});

/// fully_shard(module, ReplicateMesh(mesh)), as DDP: every rank holds full parameters, and
/// gradients are reduced group by group during backward.
TESSERA_API void replicate(torch::nn::Module& module, const DeviceMesh& mesh,
                           const FullyShardOptions& options = {});

/// Gathered memory on this rank, over all groups of the mesh's world.
struct TESSERA_API GatheredMemory {
  int64_t bytes = 0;
  int64_t peak_bytes = 0;  ///< since the last reset
};
TESSERA_API GatheredMemory gathered_memory(const DeviceMesh& mesh);
TESSERA_API void reset_peak_gathered_memory(const DeviceMesh& mesh);

/// Describes one group, for tests and reports.
struct TESSERA_API ShardedGroupInfo {
  size_t parameters = 0;
  int64_t gathered_bytes = 0;  ///< while gathered
  bool gathered = false;
  TrainingState state = TrainingState::idle;
  /// The bucket it belongs to: groups with the same number share collectives.
  size_t merged = 0;
  int64_t merged_bytes = 0;  ///< gathered_bytes of the whole bucket
};
/// The groups of the module's parameters, in creation order.
TESSERA_API std::vector<ShardedGroupInfo> sharded_groups(torch::nn::Module& module);

}  // namespace tessera
