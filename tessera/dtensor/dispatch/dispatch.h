#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>

#include "tessera/dtensor/dispatch/decide/decision.h"
#include "tessera/dtensor/dispatch/op/operands.h"
#include "tessera/dtensor/tensor/sharded_tensor.h"

/// The boxed kernel of every op on sharded tensors:
///
///   1 look up (op, input shardings, static arguments) in this thread's decisions
///   2 redistribute the inputs that need it
///   3 run the op on the local tensors
///   4 wrap the results with the shardings of the decision
namespace tessera::dtensor {

void dispatch(const OpEntry& entry, const c10::OperatorHandle& op, Stack& stack);

/// The thread's decision for a call, computed if there is none yet.
const Decision& decision_for(const OpEntry& entry, const c10::OperatorHandle& op,
                             const Stack& stack);

/// Throws if the arguments include plain tensors of more than one element and no guard allows them.
void check_plain(const OpEntry& entry, const Stack& stack);

/// Warns or throws if the decision communicates or replicates and the thread's policy disallows it.
void check_policy(const OpEntry& entry, const Decision& decision, const Stack& stack);

/// Installs the check of CommPolicy at the place where collectives are issued. Called once, at
/// load.
void install_policy();

/// The same check for a kernel that is about to combine the ranks' results.
void check_reduction(const OpEntry& entry, const Sharding& sharding);

/// Runs a foreach or fused op once per mesh (has_several_meshes_in_lists); the results are in the
/// order of the elements.
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
void note_origin(const OpEntry& entry, const Decision& decision, const at::Tensor& base,
                 const at::Tensor& local, std::span<const c10::IValue> results);
/// Throws for a view whose writes would be lost.
void check_writable(const OpEntry& entry, const c10::IValue& value);
/// Forwards what was written to a gathered view to its base.
void write_through(const OpEntry& entry, const at::Tensor& view);

}  // namespace tessera::dtensor
