#pragma once

#include <ATen/core/Tensor.h>

#include <map>
#include <string>

namespace torch::nn {
class Module;
}

/// The values of a module's parameters and buffers by name: as one rank would have them, or as they
/// lie. For any module with sharded tensors, by fully_shard or otherwise. All functions here are
/// called on every rank.
///
///   auto state = full_state_dict(*model, {.rank0_only = true});
///   if (rank == 0) for (auto& [name, tensor] : state) ...       // write it
///   load_full_state_dict(*model, state);                             // every rank has the state
///   load_full_state_dict(*model, state, {.rank0_only = true});       // rank 0 has it and sends it
namespace tessera {

using NamedTensors = std::map<std::string, at::Tensor>;
using FullStateDict = NamedTensors;

struct FullStateDictOptions {
  /// Only the first rank has it, of the largest mesh among the module's tensors: the others get, or
  /// give, an empty state.
  bool rank0_only = false;
};

/// Whole copies on the CPU. Small tensors are gathered together, large ones one by one, so that no
/// rank holds more than the state and one message.
FullStateDict full_state_dict(const torch::nn::Module& module,
                              const FullStateDictOptions& options = {});

/// Takes the values of a state with the same names and shapes. Each rank copies its parts and
/// nothing is sent; or, with rank0_only, is sent its parts, one tensor after another. Names that
/// are missing or too many are an InvalidArgument on every rank, before anything changes.
void load_full_state_dict(torch::nn::Module& module, const FullStateDict& state,
                          const FullStateDictOptions& options = {});

/// The tensors as they lie, without gradients: ordinary sharded tensors and plain ones, which share
/// the module's memory. Nothing is gathered or sent. What a checkpoint writes, rank by rank.
NamedTensors sharded_state_dict(const torch::nn::Module& module);

/// Takes the values of a state with the same names and shapes whose tensors are placed in any way,
/// on any mesh of the same world.
void load_sharded_state_dict(torch::nn::Module& module, const NamedTensors& state);

}  // namespace tessera
