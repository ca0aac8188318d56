#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "tessera/dtensor/dispatch/hidden_writes.h"
#include "tessera/rules/op_call.h"

namespace tessera::dtensor {

/// What the schema says about an argument, as far as dispatch asks.
enum class ArgKind : uint8_t {
  tensor,       // Tensor, Tensor?
  tensor_list,  // Tensor[], Tensor?[]
  scalar,       // Scalar, float: its type matters, its value as far as a rule asks
  scalar_list,
  integer,  // int, SymInt, bool, dtype, layout, memory format
  integer_list,
  text,
  generator,
  other,  // device, streams, ...: no part in any decision
};

struct OpEntry;

/// Takes an op over; returns false to let the common path have it after all. On true the arguments
/// on the stack have been replaced by the results.
using Handler = bool (*)(const OpEntry& entry, const c10::OperatorHandle& op,
                         torch::jit::Stack& stack);

/// The same from outside of the library (own_ops.h).
using OwnHandler = std::function<bool(const c10::OperatorHandle& op, torch::jit::Stack& stack)>;

/// Computes an op on local tensors in place of libtorch's kernel.
using LocalKernel = void (*)(torch::jit::Stack& stack);

/// Global metadata of an op's results from its arguments, where no kernel of libtorch's tells.
using Infer =
    std::vector<std::optional<rules::ResultMeta>> (*)(std::span<const c10::IValue> arguments);

/// One op, read once when its kernel is registered.
struct OpEntry {
  explicit OpEntry(const c10::OperatorHandle& op);

  std::string name;  // "aten::add.Tensor"
  std::vector<ArgKind> args;
  std::vector<int> written;       // arguments the op writes to: self of add_, out of add.out
  std::vector<HiddenArg> hidden;  // those that the schema does not announce
  std::vector<int> result_alias;  // by return: the written argument that it is, or -1
  std::vector<bool> result_is_list;
  std::vector<bool> result_is_tensor;
  bool is_out = false;   // the written arguments are out= arguments
  bool is_view = false;  // results alias inputs without writing
  uint32_t id = 0;       // dense, for per-thread caches
  Handler handler = nullptr;
  Handler composite_handler = nullptr;  // tried before a composite op is taken apart
  OwnHandler own_handler = nullptr;     // what `handler` calls for an op of another library
  LocalKernel local_kernel = nullptr;
  Infer infer = nullptr;
};

}  // namespace tessera::dtensor
