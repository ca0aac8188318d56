#pragma once

#include <ATen/core/Generator.h>

#include <string>

#include "tessera/base/api.h"
#include "tessera/checkpoint/state.h"

namespace torch::optim {
class Optimizer;
}

/// The state of optimizers and random numbers as a part of a State, under PyTorch's names:
///
///   add_optimizer(state, "optim.", adam, *net);
///     optim.state.0.weight.exp_avg         the optimizer's own tensor, sharded as the parameter
///     optim.state.0.weight.step            a 0-dim tensor, as Python's optimizers have it
///     optim.param_groups.0.lr              and betas, eps, weight_decay, ...
///   load(state, "step_100");
///   take_optimizer(state, "optim.", adam, *net);    // step counts and rates: no tensors in C++
namespace tessera {

/// For Adam, AdamW, SGD, RMSprop and Adagrad; others are NotSupported. State that the optimizer has
/// not made yet, because it has made no step, is made here as its first step would.
/// Parameters that are not the module's are an InvalidArgument.
TESSERA_API void add_optimizer(State& state, const std::string& prefix,
                               torch::optim::Optimizer& optimizer, const torch::nn::Module& module);
TESSERA_API void take_optimizer(const State& state, const std::string& prefix,
                                torch::optim::Optimizer& optimizer,
                                const torch::nn::Module& module);

/// The generator's state as bytes; comm::default_generator() is the calling rank's. Where every
/// rank has its own numbers, give each rank's state a name of its own.
TESSERA_API void add_generator(State& state, const std::string& name,
                               const at::Generator& generator);
TESSERA_API void take_generator(const State& state, const std::string& name,
                                at::Generator& generator);

}  // namespace tessera
