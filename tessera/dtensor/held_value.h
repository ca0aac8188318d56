#pragma once

#include <ATen/core/ivalue.h>
#include <torch/csrc/autograd/custom_function.h>

#include <string>
#include <utility>

/// Saves a value of any type from the forward of an autograd function for its backward.
///
///   hold_value(ctx, "grad", sharding);                          // in forward
///   const auto& as = held_value<Sharding>(ctx, "grad");         // in backward, as the same type
namespace tessera::dtensor {

template <typename Value>
struct HeldValue : torch::CustomClassHolder {
  explicit HeldValue(Value v) : value(std::move(v)) {}
  Value value;
};

template <typename Value>
void hold_value(torch::autograd::AutogradContext* ctx, const std::string& name, Value value) {
  ctx->saved_data[name] =
      c10::IValue::make_capsule(c10::make_intrusive<HeldValue<Value>>(std::move(value)));
}

template <typename Value>
const Value& held_value(torch::autograd::AutogradContext* ctx, const std::string& name) {
  // The context owns it.
  return c10::static_intrusive_pointer_cast<HeldValue<Value>>(ctx->saved_data[name].toCapsule())
      ->value;
}

}  // namespace tessera::dtensor
