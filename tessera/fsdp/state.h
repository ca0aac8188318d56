#pragma once

#include <ATen/core/Tensor.h>

#include <map>
#include <string>

namespace torch::nn {
class Module;
}

/// The values of a module's parameters and buffers by name, as one rank would have them. For any
/// module with sharded tensors, by fully_shard or otherwise.
///
///   auto state = full_state(*model, {.rank0_only = true});     // on every rank
///   if (rank == 0) for (auto& [name, tensor] : state) ...       // write it
///   load_full_state(*model, state);                             // every rank has the state
namespace tessera {

using FullState = std::map<std::string, at::Tensor>;

struct FullStateOptions {
  /// Only the first rank of a tensor's mesh keeps it: the others get an empty state.
  bool rank0_only = false;
};

/// Whole copies on the CPU; gathered one by one, so that no rank holds more than the state and one
/// tensor. Collective.
FullState full_state(const torch::nn::Module& module, const FullStateOptions& options = {});

/// Takes the values of a state with the same names and shapes; each rank copies its parts, nothing
/// is sent. Names that are missing or too many are an InvalidArgument, before anything changes.
void load_full_state(torch::nn::Module& module, const FullState& state);

}  // namespace tessera
