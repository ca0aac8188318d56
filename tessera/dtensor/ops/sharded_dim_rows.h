#pragma once

#include <vector>

#include "tessera/rules/rule.h"

/// What kernels along a sharded dim of an op's first operand declare as their rows.
namespace tessera::dtensor {

/// The dim that an argument `dim` names; -1 if it is not one of the tensor's, which libtorch
/// reports.
int named_dim(const rules::OpCall& call, const Sharding& tensor);

/// A row for each way in which an axis may shard the dim of a tensor: plainly, and irregularly if
/// it already does. One operand, no results yet.
///
///   4x10 S1[3,3,3,1] over 4 ranks, dim 1:   S1[3,3,3,1] as it is, S1
std::vector<rules::Row> rows_sharding(const Sharding& tensor, int axis, int dim);

/// Elements beside the dim on a rank, as the tensor is placed on the other axes: 4 of 4x10, dim 1.
int64_t elements_beside(const Sharding& tensor, int axis, int dim);

/// Bytes that a rank sends in an all_gather of so many from each.
int64_t gathered_bytes(const Sharding& tensor, int axis, int64_t of_each);

}  // namespace tessera::dtensor
