#pragma once

#include <span>
#include <vector>

#include "tessera/dtensor/dispatch/decide/row_kernel.h"
#include "tessera/sharding/placement.h"

/// Reductions over ranks inside kernels of rows.
namespace tessera::dtensor {

/// The sharding of a local tensor of which each rank along these axes has an addend.
Sharding addends_over(const at::Tensor& local, const DeviceMesh& mesh, std::span<const int> axes,
                      ReduceOp op);

/// Reduces a local tensor over mesh axes, in one message. The ranks along these axes must hold
/// tensors of one shape; ranks along other axes need not. May modify the argument.
at::Tensor reduce_over_axes(at::Tensor local, const DeviceMesh& mesh, std::span<const int> axes,
                            ReduceOp op);

/// The axes that shard what the op reduces: those where the first operand is sharded and the first
/// result is replicated.
std::vector<int> reduced_axes(const KernelCall& call);
/// Reduces a local result over them.
at::Tensor reduce_over_sharded(const KernelCall& call, at::Tensor local, ReduceOp op);

/// The axes of more than one rank over which a tensor is sharded: in any dim, or in this one.
std::vector<int> sharded_axes(const Sharding& sharding);
std::vector<int> sharded_axes(const Sharding& sharding, int dim);

}  // namespace tessera::dtensor
