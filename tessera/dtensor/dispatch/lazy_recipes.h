#pragma once

#include <ATen/core/Tensor.h>

#include <memory>

#include "tessera/dtensor/dispatch/op_entry.h"
#include "tessera/dtensor/lazy.h"
#include "tessera/dtensor/sharded_tensor.h"

/// Lazy tensors that are made of others: how to come by the value of a view, a cast or a result
/// from the value of what it was made of. None of them holds a unsharded tensor. Which op goes
/// which way is decided in lazy_dispatch.cpp, the only one who includes this.
namespace tessera::dtensor {

/// A view has nothing at rest, only its recipe.
inline bool is_lazy_view(const ShardedMeta& meta) { return !meta.local().defined(); }

/// Runs a view op on a lazy tensor: its results are recipes, replayed on what the base produces.
void view_lazily(const OpEntry& entry, const c10::OperatorHandle& op, torch::jit::Stack& stack);

/// A change of type alone: not of device, memory or order.
bool is_cast(const OpEntry& entry, const torch::jit::Stack& stack);
/// Runs it: the shards are cast, and what the base produces is cast when somebody asks.
void cast_lazily(const OpEntry& entry, const c10::OperatorHandle& op, torch::jit::Stack& stack);

/// What an op made of the shards of `of`, as a lazy tensor itself.
at::Tensor as_lazy_result(const at::Tensor& computed, const std::shared_ptr<LazyLocal>& of);

}  // namespace tessera::dtensor
