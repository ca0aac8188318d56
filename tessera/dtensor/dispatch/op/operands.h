#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>

#include <span>
#include <string>
#include <vector>

#include "tessera/base/api.h"
#include "tessera/dtensor/dispatch/op/op_entry.h"
#include "tessera/dtensor/tensor/sharded_tensor.h"

/// The tensors of a call.
namespace tessera::dtensor {

using torch::jit::Stack;

/// A tensor among the arguments of a call, with its meta; for error messages and decisions.
struct Operand {
  const at::Tensor* tensor;    // undefined for an absent optional
  const ShardedMeta* sharded;  // nullptr for plain ones
  int arg;                     // index of the argument that it is, or is in
  bool written;
  bool hidden = false;  // written to, but not declared in the schema (hidden_writes.h)
};

/// All tensors among the arguments on top of the stack, lists flattened.
std::vector<Operand> operands_of(const OpEntry& entry, const Stack& stack);

/// The shardings, for error messages: "tp=2 : S0 : 4x4; plain 3".
std::string operands_text(std::span<const Operand> operands);

/// The sharding with which a plain tensor takes part: replicated over `mesh`.
TESSERA_API Sharding as_replicated(const at::Tensor& plain, const DeviceMesh& mesh);

/// For foreach and fused ops, whose list elements are independent: per element, the mesh of the
/// first sharded tensor in the lists at that index. Empty for other ops.
std::vector<DeviceMesh> meshes_of_elements(const OpEntry& entry, const Stack& stack);
/// Whether these are more than one mesh.
bool has_several_meshes_in_lists(const OpEntry& entry, const Stack& stack);

}  // namespace tessera::dtensor
