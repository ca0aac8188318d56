#pragma once

#include <ATen/core/dispatch/Dispatcher.h>

#include <span>
#include <string_view>
#include <vector>

/// Arguments that ops of libtorch write to without declaring it in their schemas, mainly running
/// statistics. If such a tensor had to be redistributed for the op, the written values must be
/// redistributed back; otherwise replicas diverge.
///
/// Composite ops (batch_norm, instance_norm) are not listed; the ops they call are.
namespace tessera::dtensor {

struct HiddenWrite {
  std::string_view op;        ///< all overloads: "aten::native_batch_norm"
  std::string_view argument;  ///< "running_mean"
  std::string_view flag;      ///< written only if this argument is true; empty: always
};

/// The whole list. A test runs libtorch's ops on plain tensors to verify that it is complete.
std::span<const HiddenWrite> hidden_writes();

/// The same for one op, by argument index.
struct HiddenArg {
  int argument;
  int flag;  ///< -1: always written
};
std::vector<HiddenArg> hidden_args(const c10::FunctionSchema& schema);

}  // namespace tessera::dtensor
