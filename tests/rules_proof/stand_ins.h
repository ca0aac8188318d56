#pragma once

#include <ATen/ATen.h>
#include <ATen/core/dispatch/Dispatcher.h>

#include <map>
#include <string>
#include <string_view>
#include <vector>

/// What kernels that only other devices have compute, written with ops that every device has. Rows
/// are about what is computed, not by whom, so a rule is proven with them as with the kernels
/// themselves. (cuda_test.cpp has those.)
namespace tessera::test {

/// The arguments of a call by their names in the schema.
class Arguments {
 public:
  Arguments(const c10::FunctionSchema& schema, const torch::jit::Stack& stack)
      : schema_(schema), stack_(stack) {}

  const c10::IValue& operator[](std::string_view name) const {
    for (size_t i = 0; i < stack_.size(); ++i) {
      if (schema_.arguments()[i].name() == name) return stack_[i];
    }
    throw std::invalid_argument(schema_.name() + " has no argument " + std::string(name));
  }
  /// Undefined for None.
  at::Tensor tensor(std::string_view name) const {
    const auto& value = (*this)[name];
    return value.isTensor() ? value.toTensor() : at::Tensor();
  }
  double real(std::string_view name, double otherwise = 0) const {
    const auto& value = (*this)[name];
    return value.isNone() ? otherwise : value.toScalar().toDouble();
  }

 private:
  const c10::FunctionSchema& schema_;
  const torch::jit::Stack& stack_;
};

using Results = std::vector<at::Tensor>;
/// Results are undefined where they are no tensors or say nothing (seeds).
using StandIn = Results (*)(const Arguments&);
using StandIns = std::map<std::string_view, StandIn>;

}  // namespace tessera::test
