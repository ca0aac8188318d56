#pragma once

#include <ATen/core/Tensor.h>

#include <span>
#include <tuple>
#include <utility>
#include <vector>

#include "tessera/dtensor/visit_tensors.h"
#include "tessera/sharding/sharding.h"

/// Runs a function of plain tensors on the local parts of sharded ones: for a kernel that knows
/// nothing of shards, or an algorithm that communicates by itself.
///
///   auto attend = local_map(
///       [](at::Tensor q, at::Tensor k, at::Tensor v) { return my_attention(q, k, v); },
///       {.out_placements = {{Shard(1)}}, .in_placements = {{Shard(1)}, {Shard(1)}, {Shard(1)}}});
///   at::Tensor out = attend(q, k, v);      // heads on dim 1
///
/// The arguments may be of any type; tensors are found in vectors, tuples, pairs and optionals too,
/// and count as inputs and outputs in the order in which they stand there. It is differentiable if
/// the function is.
namespace tessera {

struct LocalMapOptions {
  /// By output: how the local results make up the global one. An empty list leaves the output
  /// plain.
  std::vector<std::vector<Placement>> out_placements;
  /// By input: how it must lie. An empty list, or none at all, takes it as it is.
  std::vector<std::vector<Placement>> in_placements = {};
  /// By input: how the gradient of its local part is placed; by default as the input, Partial as
  /// Replicate.
  std::vector<std::vector<Placement>> in_grad_placements = {};
  /// Move inputs that lie otherwise than in_placements say; without it that is an error.
  bool redistribute_inputs = false;
  /// The outputs' mesh; by default that of the first sharded input.
  DeviceMesh mesh = {};
  /// All ranks' outputs have the same sizes: no message to find out. Without it, uneven parts are
  /// measured and described exactly.
  bool even_outputs = false;
};

namespace dtensor {
/// Puts local tensors in the place of sharded inputs; gives the mesh of the outputs.
DeviceMesh localise_inputs(std::span<at::Tensor* const> inputs, const LocalMapOptions& options);
void globalise_outputs(std::span<at::Tensor* const> outputs, const DeviceMesh& mesh,
                       const LocalMapOptions& options);
}  // namespace dtensor

template <class Function>
auto local_map(Function function, LocalMapOptions options) {
  return [function = std::move(function), options = std::move(options)](auto... given) {
    std::tuple<decltype(given)...> arguments(std::move(given)...);
    const DeviceMesh mesh = dtensor::localise_inputs(dtensor::tensors_in(arguments), options);
    auto result = std::apply(function, std::move(arguments));
    dtensor::globalise_outputs(dtensor::tensors_in(result), mesh, options);
    return result;
  };
}

}  // namespace tessera
