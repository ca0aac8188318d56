#pragma once

#include <ATen/core/Tensor.h>

#include <atomic>

#include "tessera/dtensor/dispatch/op/op_entry.h"

/// Tensors that transpose_, unsqueeze_ or a similar op reshaped in place while views of them
/// existed. Autograd takes such views again from their base (view_replay.h), which by then has
/// another shape:
///
///   v = y.narrow(1, 0, 2)      the function of v: narrow(1, 0, 2) of y
///   y.transpose_(0, 1)
///   y.mul_(w)                  w requires grad: v would be narrow(1, 0, 2) of the transposed y
///
/// Nothing is replayed as long as no gradient is recorded for that memory, so only a write that
/// records one is refused.
namespace tessera::dtensor {

extern constinit std::atomic<bool> bases_were_reshaped;

inline bool any_reshaped_bases() { return bases_were_reshaped.load(std::memory_order_relaxed); }

/// Whether other tensors may view its memory.
bool may_have_views(const at::Tensor& base);

/// To be called after the shape of `base`, which may have views, was changed in place.
void note_reshaped_base(const at::Tensor& base);

/// Throws NotSupported if the op records the gradient of a write to such a base or to a view of it.
void refuse_replay_of_reshaped(const OpEntry& entry, const torch::jit::Stack& stack);

}  // namespace tessera::dtensor
