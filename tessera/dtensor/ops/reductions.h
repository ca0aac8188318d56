#pragma once

#include "tessera/dtensor/dispatch/row_kernel.h"
#include "tessera/sharding/placement.h"

namespace tessera::dtensor {

/// Reduces a local result over the axes that shard what the op reduces: those where the first
/// operand is sharded and the first result is not.
at::Tensor reduce_cut_axes(const KernelCall& call, at::Tensor local, ReduceOp op);

}  // namespace tessera::dtensor
