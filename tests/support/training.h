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

/// A training step run twice, on plain tensors and with parameters and inputs sharded: both see the
/// same numbers, so outputs, loss and gradients must agree.
namespace tessera::test {

/// Numbers in (-1, 1) that depend on shape and seed alone, as float64; with `below`, whole numbers
/// in [0, below).
at::Tensor test_numbers(const std::vector<int64_t>& shape, uint64_t seed, int64_t below = 0);

/// A module and how to call it.
struct Instance {
  std::shared_ptr<torch::nn::Module> module;
  std::function<at::Tensor(const std::vector<at::Tensor>&)> call;
};

/// Makes the module float64 and overwrites its parameters with numbers of the seed.
void set_parameters(torch::nn::Module& module, uint64_t seed);

/// Makes every parameter a sharded one in place: every handle to it sees it. `place` says how.
/// Buffers are replicated.
using PlaceParameter = std::function<std::vector<Placement>(const std::string& name, int64_t ndim)>;
void shard_parameters(torch::nn::Module& module, const DeviceMesh& mesh,
                      const PlaceParameter& place);

/// Replicate or Shard of any dim, by dice, for each axis.
std::vector<Placement> random_placements(Rng& rng, const DeviceMesh& mesh, int64_t ndim);

/// Everything a training step yields, by name: "output", "loss", "gradient of weight",
/// "buffer running_mean".
using Results = std::map<std::string, at::Tensor>;

/// Forward, a mean squared error against `target`, backward.
Results run_step(const Instance& instance, const std::vector<at::Tensor>& inputs,
                 const std::function<at::Tensor(const at::Tensor& output)>& target);

/// "" if each of `got` (sharded or plain) is `expected` within 1e-10, else what differs and how
/// much. Collective where `got` is sharded.
std::string difference(const Results& got, const Results& expected);

}  // namespace tessera::test
