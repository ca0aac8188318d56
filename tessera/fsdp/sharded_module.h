#pragma once

#include <tuple>
#include <utility>

#include "tessera/dtensor/visit_tensors.h"
#include "tessera/fsdp/fully_shard.h"

/// A module under fully_shard with the casts at its borders. C++ modules have no hooks, so this is
/// called in the module's place:
///
///   auto net = fully_shard(model, mesh, {.mixed_precision = {.param_dtype = at::kBFloat16,
///                                                            .output_dtype = at::kFloat}});
///   at::Tensor out = net(x);      // x as bfloat16, out as float32; gradients are cast back
///
/// `Held` is a module holder (torch::nn::Sequential) or a shared_ptr to a module; what is inside
/// stays reachable by `*net` and `net->`.
namespace tessera {

template <class Held>
class ShardedModule {
 public:
  ShardedModule(Held module, MixedPrecision types) : module_(std::move(module)), types_(types) {}

  template <class... Arguments>
  auto forward(Arguments... given) {
    std::tuple<Arguments...> arguments(std::move(given)...);
    if (types_.cast_forward_inputs) cast(arguments, types_.param_dtype);
    auto result = std::apply(
        [this](auto&... argument) { return module_->forward(std::move(argument)...); }, arguments);
    cast(result, types_.output_dtype);
    return result;
  }
  template <class... Arguments>
  auto operator()(Arguments... arguments) {
    return forward(std::move(arguments)...);
  }

  auto& operator*() { return *module_; }
  auto* operator->() { return &*module_; }
  const Held& module() const { return module_; }

 private:
  /// Floating-point tensors only: tokens and masks stay what they are.
  template <class Value>
  static void cast(Value& value, std::optional<at::ScalarType> dtype) {
    if (!dtype) return;
    for (at::Tensor* tensor : dtensor::tensors_in(value)) {
      if (tensor->defined() && tensor->is_floating_point()) *tensor = tensor->to(*dtype);
    }
  }

  Held module_;
  MixedPrecision types_;
};

/// fully_shard of a module with casts at its borders; call what is returned.
template <class Held>
requires requires(Held& held) { held.operator->(); }
ShardedModule<Held> fully_shard(Held module, const DeviceMesh& mesh,
                                const FullyShardOptions& options = {}) {
  FullyShardOptions inside = options;
  inside.mixed_precision.output_dtype = std::nullopt;
  fully_shard(*module, mesh, inside);
  return ShardedModule<Held>(std::move(module), options.mixed_precision);
}

}  // namespace tessera
