#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <string>
#include <string_view>
#include <vector>

/// Runs a function of tensors on shards and on the full tensors, and compares values, gradients and
/// communication.
///
///   check_call("dp=2,tp=2", {"mm", at::mm..., {{{8, 6}, "S0,R"}, {{6, 4}, "R,S1"}}, "S0,S1"});
///
/// `check_call` runs all ranks as threads; a difference is a test failure that names the call.
namespace tessera::test {

using Tensors = std::vector<at::Tensor>;
using Function = std::function<at::Tensor(const Tensors&)>;

struct Input {
  std::vector<int64_t> shape;
  const char* placements;
  /// Integers in [0, below), not differentiated; 0: real numbers.
  int64_t below = 0;
};

struct WatchedCall {
  const char* what;
  Function function;
  std::vector<Input> inputs;
  const char* result = nullptr;      ///< its placements; nullptr: not checked
  const char* forward = "nothing";   ///< allowed communication, in the syntax of expect_comm
  const char* backward = "nothing";  ///< nullptr: no backward
};

void check_call(std::string_view mesh, const WatchedCall& call);
void check_calls(std::string_view mesh, const std::vector<WatchedCall>& calls);

}  // namespace tessera::test
