#pragma once

#include <ATen/core/dispatch/Dispatcher.h>

#include <span>
#include <string_view>
#include <vector>

/// Tensors that ops of libtorch write to without saying so in their schemas: running statistics,
/// above all. Where such a tensor is placed otherwise than the op needs it, what was written must
/// move back, or ranks that count as copies of each other no longer are.
///
/// Composite ops are not listed (batch_norm, instance_norm): what they call is.
namespace tessera::dtensor {

struct HiddenWrite {
  std::string_view op;        ///< all overloads: "aten::native_batch_norm"
  std::string_view argument;  ///< "running_mean"
  std::string_view flag;      ///< only if this argument is true; empty: always
};

/// The whole list. A test runs libtorch's ops on plain tensors and finds no other.
std::span<const HiddenWrite> hidden_writes();

/// The same for one op, by the indexes of its arguments.
struct HiddenArg {
  int argument;
  int flag;  ///< -1: always written
};
std::vector<HiddenArg> hidden_args(const c10::FunctionSchema& schema);

}  // namespace tessera::dtensor
