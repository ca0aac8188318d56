#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <memory>
#include <span>
#include <tuple>
#include <utility>

#include "tessera/dtensor/visit_tensors.h"

namespace tessera {

/// A module with functions that process its inputs and outputs. C++ modules have no hooks, so this
/// object is called in place of the module. `Held` is a module holder (torch::nn::Linear) or a
/// shared_ptr to a module, accessible through `*net` and `net->`, for its parameters, train(),
/// eval() and so on.
template <class Held>
class BorderedModule {
 public:
  /// Modifies the tensors among the arguments, or those in the result, in place.
  using Border = std::function<void(std::span<at::Tensor* const> tensors)>;
  /// Creates an object that lives from before the input border until after the output border.
  using Scope = std::function<std::shared_ptr<void>()>;

  BorderedModule(Held module, Border input, Border output, Scope scope = {})
      : module_(std::move(module)),
        input_(std::move(input)),
        output_(std::move(output)),
        scope_(std::move(scope)) {}

  /// Runs the input border, the module's forward, and the output border.
  template <class... Arguments>
  auto forward(Arguments... given) {
    std::tuple<Arguments...> arguments(std::move(given)...);
    const std::shared_ptr<void> scope = scope_ ? scope_() : nullptr;
    if (input_) input_(dtensor::tensors_in(arguments));
    auto result = std::apply(
        [this](auto&... argument) { return module_->forward(std::move(argument)...); }, arguments);
    if (output_) output_(dtensor::tensors_in(result));
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
  Held module_;
  Border input_;
  Border output_;
  Scope scope_;
};

}  // namespace tessera
