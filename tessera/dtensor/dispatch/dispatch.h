#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>

#include "tessera/base/api.h"
#include "tessera/dtensor/dispatch/decision.h"
#include "tessera/dtensor/dispatch/op_entry.h"
#include "tessera/dtensor/sharded_tensor.h"
#include "tessera/rules/op_call.h"

/// The boxed kernel of every op on sharded tensors:
///
///   1 look up (op, input shardings, static arguments) in this thread's decisions
///   2 redistribute the inputs that need it
///   3 run the op on the local tensors
///   4 wrap the results with the shardings of the decision
namespace tessera::dtensor {

using torch::jit::Stack;

void dispatch(const OpEntry& entry, const c10::OperatorHandle& op, Stack& stack);

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

/// The thread's decision for a call, computed if there is none yet.
const Decision& decision_for(const OpEntry& entry, const c10::OperatorHandle& op,
                             const Stack& stack);
/// Computes the decision for a call that has none yet.
Decided decide(const OpEntry& entry, const c10::OperatorHandle& op, const Stack& stack);

/// Throws if the arguments include plain tensors of more than one element and no guard allows them.
void check_plain(const OpEntry& entry, const Stack& stack);

/// Warns or throws if the decision communicates or replicates and the thread's policy disallows it.
void check_policy(const OpEntry& entry, const Decision& decision, const Stack& stack);

/// Installs the check of CommPolicy at the place where collectives are issued. Called once, at
/// load.
void install_policy();

/// The same check for a kernel that is about to combine the ranks' results.
void check_reduction(const OpEntry& entry, const Sharding& sharding);

/// Global metadata of an op's results, from its Meta kernel; empty if that gives no answer.
/// Rethrows the kernel's errors about the caller's arguments (shapes that do not match).
std::vector<std::optional<rules::ResultMeta>> infer_results(const OpEntry& entry,
                                                            const c10::OperatorHandle& op,
                                                            const Stack& stack);

/// Whether the results would differ from `metas` for other numeric arguments. Meta kernels do not
/// report what they read, so this is determined by a second call.
bool numbers_change_results(const OpEntry& entry, const c10::OperatorHandle& op, const Stack& stack,
                            std::span<const std::optional<rules::ResultMeta>> metas);

/// For foreach and fused ops, whose list elements are independent: whether the elements are on more
/// than one mesh.
bool has_several_meshes_in_lists(const OpEntry& entry, const Stack& stack);
/// Runs such an op once per mesh; the results are in the order of the elements.
void dispatch_by_mesh(const OpEntry& entry, const c10::OperatorHandle& op, Stack& stack);

/// A new local tensor for an operand that the op writes to, with the sharding that the decision
/// requires. It has the operand's values, unless it is an out= argument.
at::Tensor borrow_written(const OpEntry& entry, const ShardedMeta& operand, const Sharding& as,
                          bool is_out);
/// Throws NotSupported if two of the tensors that are written through copies overlap.
void check_written_once(const OpEntry& entry, std::span<const at::Tensor> originals);
/// Redistributes what the op left in the borrowed tensors back into the originals.
void write_back(const OpEntry& entry, const Decision& decision,
                std::span<const at::Tensor> originals, std::span<const at::Tensor> borrowed);

/// Records the origin of view results that alias `local`, a redistributed copy of `base`, or the
/// local tensor of a base that is itself such a view.
void note_origin(const Decision& decision, const at::Tensor& base, const at::Tensor& local,
                 std::span<const c10::IValue> results);
/// Throws for a view whose writes would be lost.
void check_writable(const OpEntry& entry, const c10::IValue& value);
/// Forwards what was written to a gathered view to its base.
void write_through(const OpEntry& entry, const at::Tensor& view);

/// The sharding with which a plain tensor takes part: replicated over `mesh`.
TESSERA_API Sharding as_replicated(const at::Tensor& plain, const DeviceMesh& mesh);

}  // namespace tessera::dtensor
