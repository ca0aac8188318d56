#pragma once

#include <ATen/core/Tensor.h>

#include <map>
#include <string>

#include "tessera/base/api.h"

namespace torch::nn {
class Module;
}

/// The values of a module's parameters and buffers by name: as full tensors, or as sharded. For any
/// module with sharded tensors, by fully_shard or otherwise. All functions here are collective.
///
///   auto state = full_state_dict(*model, {.rank0_only = true});
///   if (rank == 0) for (auto& [name, tensor] : state) ...       // write it
///   load_full_state_dict(*model, state);                             // every rank has the state
///   load_full_state_dict(*model, state, {.rank0_only = true});       // rank 0 has it and sends it
namespace tessera {

using NamedTensors = std::map<std::string, at::Tensor>;
using FullStateDict = NamedTensors;

struct TESSERA_API FullStateDictOptions {
  /// Only the first rank of the largest mesh among the module's tensors has the state; the others
  /// return, or pass, an empty one.
  bool rank0_only = false;
};

/// Full copies on the CPU. Small tensors are gathered together, large ones one by one, so no rank
/// holds more than the state plus one message.
TESSERA_API FullStateDict full_state_dict(const torch::nn::Module& module,
                                          const FullStateDictOptions& options = {});

/// Loads the values of a state with the same names and shapes. Each rank copies its own parts,
/// without communication; with rank0_only they are sent to it, tensor by tensor. Missing or
/// unexpected names throw InvalidArgument on every rank before anything changes.
TESSERA_API void load_full_state_dict(torch::nn::Module& module, const FullStateDict& state,
                                      const FullStateDictOptions& options = {});

/// The tensors as sharded, without gradients: ordinary sharded tensors and plain ones, which share
/// the module's memory. No communication. This is what a checkpoint writes, per rank.
TESSERA_API NamedTensors sharded_state_dict(const torch::nn::Module& module);

/// Loads the values of a state with the same names and shapes whose tensors may have any
/// placements, on any mesh of the same world.
TESSERA_API void load_sharded_state_dict(torch::nn::Module& module, const NamedTensors& state);

}  // namespace tessera
