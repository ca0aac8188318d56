#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>

#include "tessera/dtensor/dispatch/decision.h"
#include "tessera/dtensor/dispatch/op_entry.h"
#include "tessera/dtensor/sharded_tensor.h"
#include "tessera/rules/op_call.h"

/// The one kernel behind every op on sharded tensors:
///
///   1 look up (op, input shardings, static arguments) among this thread's decisions
///   2 redistribute the inputs that need it
///   3 run the op on the local tensors
///   4 wrap the results with the shardings that the decision holds
namespace tessera::dtensor {

using torch::jit::Stack;

void dispatch(const OpEntry& entry, const c10::OperatorHandle& op, Stack& stack);

/// The tensor at `operand`'s place in the call, seen through its meta; for messages and decisions.
struct Operand {
  const at::Tensor* tensor;    // undefined for an absent optional
  const ShardedMeta* sharded;  // nullptr for plain ones
  int arg;                     // which argument it is, or is in
  bool written;
  bool hidden = false;  // written to, but not by the schema (hidden_writes.h)
};

/// All tensors among the arguments on top of the stack, lists flattened.
std::vector<Operand> operands_of(const OpEntry& entry, const Stack& stack);

/// The shardings, for messages: "tp=2 : S0 : 4x4; plain 3".
std::string operands_text(std::span<const Operand> operands);

/// Makes the decision for a call that has none yet.
Decided decide(const OpEntry& entry, const c10::OperatorHandle& op, const Stack& stack);

/// Throws if plain tensors of more than one element are among the arguments and no guard lets them.
void check_plain(const OpEntry& entry, const Stack& stack);

/// Warns or throws where the decision communicates, or replicates, and the thread's policy minds.
void check_policy(const OpEntry& entry, const Decision& decision, const Stack& stack);

/// What CommPolicy forbids is refused or warned of where collectives are issued; once, at load.
void install_policy();

/// The same for an op that is about to combine the ranks' results itself.
void check_reduction(const OpEntry& entry, const Sharding& sharding);

/// Global metadata of an op's results from its Meta kernel; empty if it has none that answers.
/// Throws what the kernel throws at a caller's mistake (shapes that do not fit).
std::vector<std::optional<rules::ResultMeta>> infer_results(const OpEntry& entry,
                                                            const c10::OperatorHandle& op,
                                                            const Stack& stack);

/// True if the results would not be `metas` for other numbers among the arguments. Kernels for meta
/// tensors do not say what they read, so this is found out by a second call.
bool numbers_change_results(const OpEntry& entry, const c10::OperatorHandle& op, const Stack& stack,
                            std::span<const std::optional<rules::ResultMeta>> metas);

/// True for foreach and fused ops, where each element of the lists stands for itself, if the
/// elements lie on more than one mesh.
bool has_several_meshes_in_lists(const OpEntry& entry, const Stack& stack);
/// Such an op, once for each mesh; the results are in the order of the elements.
void dispatch_by_mesh(const OpEntry& entry, const c10::OperatorHandle& op, Stack& stack);

/// A fresh local tensor for an operand that the op writes to, placed as the decision wants it: with
/// the operand's values, unless it is an out= argument.
at::Tensor borrow_written(const OpEntry& entry, const ShardedMeta& operand, const Sharding& as,
                          bool is_out);
/// Moves what the op left in the borrowed tensors into the originals.
void write_back(const OpEntry& entry, const Decision& decision,
                std::span<const at::Tensor> originals, std::span<const at::Tensor> borrowed);

/// Marks the results of a view of `base` that was taken of `local`: of its redistributed copy, or
/// of a base that is itself such a view.
void note_origin(const Decision& decision, const at::Tensor& base, const at::Tensor& local,
                 std::span<const c10::IValue> results);
/// Throws for a view whose writes would be lost.
void check_writable(const OpEntry& entry, const c10::IValue& value);
/// Moves what was written to a gathered view into its base.
void write_through(const OpEntry& entry, const at::Tensor& view);

/// The sharding under which a plain tensor takes part: replicated over `mesh`.
Sharding as_replicated(const at::Tensor& plain, const DeviceMesh& mesh);

}  // namespace tessera::dtensor
