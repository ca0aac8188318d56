#pragma once

#include <ATen/core/Tensor.h>

#include <span>
#include <tuple>
#include <utility>
#include <vector>

#include "tessera/base/api.h"
#include "tessera/dtensor/visit_tensors.h"
#include "tessera/sharding/sharding.h"

/// Runs a function of plain tensors on the local parts of sharded ones: for a kernel without
/// sharding support, or an algorithm with its own communication.
///
///   auto attend = local_map(
///       [](at::Tensor q, at::Tensor k, at::Tensor v) { return my_attention(q, k, v); },
///       {.out_placements = {{Shard(1)}}, .in_placements = {{Shard(1)}, {Shard(1)}, {Shard(1)}}});
///   at::Tensor out = attend(q, k, v);      // heads on dim 1
///
/// Arguments may have any type. Tensors inside vectors, tuples, pairs and optionals are found as
/// well and are numbered as inputs and outputs in order of appearance. Differentiable if the
/// function is.
namespace tessera {

struct TESSERA_API LocalMapOptions {
  /// Per output, the placements of the local results. An empty list leaves the output plain.
  std::vector<std::vector<Placement>> out_placements;
  /// Per input, the required placements. An empty list, or a missing one, accepts any.
  std::vector<std::vector<Placement>> in_placements = {};
  /// Per input, the placements of the gradient of its local part; by default those of the input,
  /// with Partial replaced by Replicate.
  std::vector<std::vector<Placement>> in_grad_placements = {};
  /// Redistributes inputs whose placements differ from in_placements; if false, that is an error.
  bool redistribute_inputs = false;
  /// The mesh of the outputs; by default that of the first sharded input.
  DeviceMesh mesh = {};
  /// Asserts that all ranks' outputs have the same sizes, which saves the message that measures
  /// them. If false, uneven parts are measured and described exactly.
  bool even_outputs = false;
};

namespace dtensor {
/// Replaces sharded inputs by their local tensors; returns the mesh of the outputs.
TESSERA_API DeviceMesh localise_inputs(std::span<at::Tensor* const> inputs,
                                       const LocalMapOptions& options);
TESSERA_API void globalise_outputs(std::span<at::Tensor* const> outputs, const DeviceMesh& mesh,
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
