#pragma once

#include <ATen/core/dispatch/Dispatcher.h>

#include <vector>

/// Arguments that ops of libtorch write to without declaring it in their schemas, mainly running
/// statistics. If such a tensor had to be redistributed for the op, the written values must be
/// redistributed back; otherwise replicas diverge.
///
/// Composite ops (batch_norm, instance_norm) are not listed; the ops they call are.
namespace tessera::dtensor {

/// One of an op's, by argument index. A test runs libtorch's ops on plain tensors to verify that
/// the table of this file is complete.
struct HiddenArg {
  int argument;
  int flag;  ///< -1: always written
};
std::vector<HiddenArg> hidden_args(const c10::FunctionSchema& schema);

}  // namespace tessera::dtensor
