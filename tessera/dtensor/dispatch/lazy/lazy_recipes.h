#pragma once

#include <ATen/core/Tensor.h>

#include <memory>

#include "tessera/dtensor/dispatch/lazy/unreduced_leaf.h"
#include "tessera/dtensor/dispatch/op/op_entry.h"
#include "tessera/dtensor/tensor/lazy.h"
#include "tessera/dtensor/tensor/sharded_tensor.h"

/// Lazy tensors derived from others: how to compute the value of a view, a cast or a result from
/// the value of its base. None of them holds an unsharded tensor. Included only by
/// lazy_dispatch.cpp, which decides which op takes which path.
namespace tessera::dtensor {

/// A view has no shards, only its recipe.
inline bool is_lazy_view(const ShardedMeta& meta) { return !meta.local().defined(); }

/// Runs a view op on a lazy tensor: the results are recipes, replayed on the unsharded base.
void view_lazily(const OpEntry& entry, const c10::OperatorHandle& op, torch::jit::Stack& stack);

/// Whether the op changes only the dtype: not the device, the memory or the strides.
bool is_cast(const OpEntry& entry, const torch::jit::Stack& stack);
/// Runs the cast on the shards; the unsharded base is cast on demand.
void cast_lazily(const OpEntry& entry, const c10::OperatorHandle& op, torch::jit::Stack& stack);

/// The result of an op on the shards of `of`, as a lazy tensor. `operands`: those of the op.
at::Tensor as_lazy_result(const at::Tensor& computed, const std::shared_ptr<LazyLocal>& of,
                          const FromUnreducedLeaf& operands);

}  // namespace tessera::dtensor
