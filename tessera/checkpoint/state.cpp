#include "tessera/checkpoint/state.h"

#include <torch/nn/module.h>

#include "tessera/base/errors.h"

namespace tessera {

void add_module(State& state, const std::string& prefix, const torch::nn::Module& module) {
  const auto add = [&](const std::string& name, const at::Tensor& tensor) {
    if (!tensor.defined()) return;
    require(state.emplace(prefix + name, tensor).second, "add_module: ", prefix, name,
            " is in the state already");
  };
  for (const auto& item : module.named_parameters()) add(item.key(), item.value());
  for (const auto& item : module.named_buffers()) add(item.key(), item.value());
}

}  // namespace tessera
