#pragma once

#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "tessera/fsdp/compute_dtype.h"
#include "tessera/fsdp/fully_shard.h"
#include "tessera/module/bordered_module.h"

/// A module under fully_shard, with dtype casts of its inputs and outputs:
///
///   auto net = fully_shard(model, mesh, {.mp_policy = {.param_dtype = at::kBFloat16,
///                                                            .output_dtype = at::kFloat}});
///   at::Tensor out = net(x);      // x as bfloat16, out as float32; gradients are cast back
///
/// While it computes, parameters report their compute dtype (compute_dtype.h).
namespace tessera {

namespace fsdp {

/// Casts floating-point tensors only; tokens and masks are unchanged.
inline auto cast_to(at::ScalarType dtype) {
  return [dtype](std::span<at::Tensor* const> tensors) {
    for (at::Tensor* tensor : tensors) {
      if (tensor->defined() && tensor->is_floating_point()) *tensor = tensor->to(dtype);
    }
  };
}

/// Enters the scope around a forward. Covers groups created earlier for submodules as well.
inline auto enters(const std::shared_ptr<ComputeDtypeScope>& scope) {
  return [scope]() -> std::shared_ptr<void> {
    scope->enter();
    return {nullptr, [scope](void*) { scope->leave(); }};
  };
}

}  // namespace fsdp

/// fully_shard of a module's holder, over a DeviceMesh or a DataParallelMesh. Call the returned
/// object in place of the module.
template <class Held, class Mesh>
requires requires(Held& held) { held.operator->(); }
BorderedModule<Held> fully_shard(Held module, const Mesh& mesh,
                                 const FullyShardOptions& options = {}) {
  const MixedPrecisionPolicy& types = options.mp_policy;
  FullyShardOptions inside = options;
  inside.mp_policy.output_dtype = std::nullopt;
  fully_shard(*module, mesh, inside);
  typename BorderedModule<Held>::Border input, output;
  if (types.param_dtype && types.cast_forward_inputs) input = fsdp::cast_to(*types.param_dtype);
  const auto scope = std::make_shared<fsdp::ComputeDtypeScope>(module->parameters());
  if (scope->empty() && !types.output_dtype) {
    return BorderedModule<Held>(std::move(module), std::move(input), {});
  }
  output = [scope, dtype = types.output_dtype](std::span<at::Tensor* const> tensors) {
    if (dtype) fsdp::cast_to (*dtype)(tensors);
    std::vector<at::Tensor> outputs;
    for (const at::Tensor* tensor : tensors) outputs.push_back(*tensor);
    scope->watch(outputs);
  };
  return BorderedModule<Held>(std::move(module), std::move(input), std::move(output),
                              fsdp::enters(scope));
}

}  // namespace tessera
