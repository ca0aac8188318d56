#pragma once

#include <functional>
#include <span>

#include "tessera/partition/rewrite/emitter.h"
#include "tessera/plan/plan.h"

/// The steps of a plan as nodes: what exec/ does with local tensors when it redistributes, here as
/// ops of a program for one rank.
///
///   all_reduce        _c10d_functional.all_reduce
///   all_gather        all_gather_into_tensor along dim 0, then the parts side by side (slice, cat)
///                     where another dim is sharded; uneven parts are padded, and sliced after
///   reduce_scatter    the parts below each other (slice, pad, cat), reduce_scatter_tensor
///   all_to_all        the same with all_to_all_single; uneven parts travel flat
///   slice             slice;    keep_one  zeros_like on all ranks but the first;    rescale  mul
///
/// Dims of symbolic size are sharded evenly and never padded. Complex values travel as their real
/// and imaginary parts (view_as_real), other types that backends lack as bytes.
namespace tessera::partition {

/// What is left to do once the messages of the last collective are needed: wait, and arrange what
/// came. Returns the value.
using Finish = std::function<program::ValueId()>;

/// Writes all nodes up to the start of the last collective, and returns how to write the others.
/// Between the two the messages overlap with whatever nodes are written. The meshes of `plan` are
/// seen from the rank that the program is for.
Finish start_plan(Emitter& emit, const plan::Plan& plan, program::ValueId value);

/// True if the plan has a step with messages, for a rank of its mesh.
bool has_messages(const plan::Plan& plan);

}  // namespace tessera::partition
