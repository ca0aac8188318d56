#pragma once

#include <ATen/core/Tensor.h>

#include "tessera/sharding/sharding.h"

/// Tensors whose elements share memory: what expand and unfold return.
///
///   x      P(avg) : 4x4
///   v      x.unfold(1, 2, 1), P(avg) : 4x3x2; v[:, 0, 1] and v[:, 1, 0] are the same memory
///   v.index_fill_(1, i, -1)      computes with R, so it writes to a temporary tensor
///
/// The temporary must share memory in the same way: in a dense one, the op would change v[:, 0, 1]
/// and leave v[:, 1, 0] as it was, and only one of them can be copied back.
namespace tessera::dtensor {

/// Whether elements of the global tensor may share memory, by its shape and strides. All ranks
/// get the same answer. Strides that interleave without sharing count as well.
bool shares_elements(const Sharding& sharding);

/// Whether a copy with sharding `as` of a tensor with sharding `of` can share elements in the same
/// way. Not if `as` shards other dims than `of`, and
///   - elements share memory by more than expanded dims: the strides of such a part are not known;
///   - one of them is expanded: its elements, which are one, would be on several ranks.
bool can_share_elements(const Sharding& as, const Sharding& of);

/// A copy of `values`, the local part of `as`, whose elements share memory as those of `like` do:
/// the local part of the same tensor with sharding `of`. Elements that share memory must be equal.
/// Requires can_share_elements(as, of).
at::Tensor copy_sharing_elements(const at::Tensor& values, const Sharding& as,
                                 const at::Tensor& like, const Sharding& of);

/// to.copy_(from), also if elements of `to` share memory; those must be equal in `from`.
void copy_into(const at::Tensor& to, const at::Tensor& from);

}  // namespace tessera::dtensor
