#pragma once

#include <torch/nn/module.h>

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "tessera/mesh/device_mesh.h"
#include "tessera/sharding/placement.h"
#include "tests/support_pure/property.h"

/// Runs a training step twice, on plain tensors and with sharded parameters and inputs: both use
/// the same numbers, so outputs, loss and gradients must agree.
namespace tessera::test {

/// Numbers in (-1, 1) that depend only on shape and seed, as float64; with `below`, integers in [0,
/// below).
at::Tensor test_numbers(const std::vector<int64_t>& shape, uint64_t seed, int64_t below = 0);

/// A module and how to call it.
struct Instance {
  std::shared_ptr<torch::nn::Module> module;
  std::function<at::Tensor(const std::vector<at::Tensor>&)> call;
};

/// Converts the module to float64 and overwrites its parameters with numbers derived from the seed.
void set_parameters(torch::nn::Module& module, uint64_t seed);

/// Shards every parameter in place, with the placements that `place` returns. Buffers are
/// replicated.
using PlaceParameter = std::function<std::vector<Placement>(const std::string& name, int64_t ndim)>;
void shard_parameters(torch::nn::Module& module, const DeviceMesh& mesh,
                      const PlaceParameter& place);

/// A random Replicate or Shard of any dim for each axis.
std::vector<Placement> random_placements(Rng& rng, const DeviceMesh& mesh, int64_t ndim);

/// Everything that a training step produces, by name: "output", "loss", "gradient of weight",
/// "buffer running_mean".
using Results = std::map<std::string, at::Tensor>;

/// Forward, mean squared error against `target`, backward.
Results run_step(const Instance& instance, const std::vector<at::Tensor>& inputs,
                 const std::function<at::Tensor(const at::Tensor& output)>& target);

/// "" if each of `got` (sharded or plain) equals `expected` within 1e-10, else the differences.
/// Collective if `got` is sharded.
std::string difference(const Results& got, const Results& expected);

}  // namespace tessera::test
