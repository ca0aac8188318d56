#pragma once

#include <ATen/core/Tensor.h>

#include <map>
#include <string>
#include <variant>

#include "tessera/base/api.h"
#include "tessera/files/pickle/plain_value.h"

namespace torch::nn {
class Module;
}

/// What a checkpoint holds: named tensors and plain values.
///
///   State state = {{"step", PlainValue(100)}, {"note", PlainValue("warm start")}};
///   add_module(state, "model.", *net);      // "model.0.weight", ...: handles, nothing is copied
///   save(state, "step_100");
///
/// Tensors are plain, sharded, or parameters of fully_shard. Loading writes into them; plain values
/// are replaced by what the checkpoint holds.
namespace tessera {

using files::PlainValue;

using StateValue = std::variant<at::Tensor, PlainValue>;
using State = std::map<std::string, StateValue>;

/// Adds the module's parameters and buffers under prefix + name. Throws InvalidArgument for a name
/// that is there already.
TESSERA_API void add_module(State& state, const std::string& prefix,
                            const torch::nn::Module& module);

}  // namespace tessera
