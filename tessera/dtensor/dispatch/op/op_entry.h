#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "tessera/dtensor/dispatch/op/hidden_writes.h"
#include "tessera/rules/op_call.h"

namespace tessera::dtensor {

/// Classification of an argument by its schema type.
enum class ArgKind : uint8_t {
  tensor,       // Tensor, Tensor?
  tensor_list,  // Tensor[], Tensor?[]
  scalar,       // Scalar, float: its type matters, its value if a rule queries it
  scalar_list,
  integer,  // int, SymInt, bool, dtype, layout, memory format
  integer_list,
  text,
  generator,
  other,  // device, streams, ...: no part in any decision
};

struct OpEntry;

/// Computes an op by calling other ops on sharded tensors; returns false to decline. On true, the
/// arguments on the stack have been replaced by the results.
///
/// It plays the part of libtorch's own decompositions (CompositeImplicitAutograd) and, like them,
/// handles no shards: each op that it calls is decided by that op's rows, which say what is
/// redistributed, by which kernel it runs and what it communicates. So it is not a second way to
/// handle an op. An op whose local computation differs from the op itself has a kernel for its rows
/// (decide/row_kernel.h). Three kinds remain:
///
///   made of other ops    allclose, dist, instance_norm, random values (drawn by global index, then
///                        combined), gradients of several meshes to unscale
///   changes the tensor   t_, squeeze_: takes the view, and the tensor becomes it; resize_
///   metadata or refusal  is_same_size, as_strided, set_: no value is computed
///
/// Collectives that are issued here directly are marked implicit (comm::CallSite), where the policy
/// is applied.
using Decomposition = bool (*)(const OpEntry& entry, const c10::OperatorHandle& op,
                               torch::jit::Stack& stack);

/// Global metadata of an op's results from its arguments, for ops without a usable Meta kernel.
using Infer =
    std::vector<std::optional<rules::ResultMeta>> (*)(std::span<const c10::IValue> arguments);

/// One op; its schema is parsed once, when its kernel is registered.
struct OpEntry {
  explicit OpEntry(const c10::OperatorHandle& op);

  std::string name;  // "aten::add.Tensor"
  std::vector<ArgKind> args;
  std::vector<int> written;       // arguments the op writes to: self of add_, out of add.out
  std::vector<HiddenArg> hidden;  // those that the schema does not declare
  std::vector<int> result_alias;  // by return: the written argument that it aliases, or -1
  std::vector<bool> result_is_list;
  std::vector<bool> result_is_tensor;
  bool is_out = false;                    // the written arguments are out= arguments
  bool is_view = false;                   // results alias inputs without writing
  bool sets_bit = false;                  // a view that libtorch computes when it is read
  bool is_fused = false;                  // an optimizer's step: aten::_fused_adamw_
  uint32_t id = 0;                        // dense, for per-thread caches
  Decomposition decomposition = nullptr;  // tried before rules and libtorch's own
  bool may_decline = false;               // the decomposition: it takes some calls only
  Infer infer = nullptr;
};

}  // namespace tessera::dtensor
