#pragma once

#include <cstdint>

#include "tessera/sharding/sharding.h"

/// Whether ranks still skip the same collectives. Copies of sharded tensors are kept, so that a
/// tensor that several ops gather or reduce travels once (dtensor/tensor/kept_gathers.h,
/// dtensor/tensor/kept_copies.h); so are sums that are known (dtensor/ops/class_sums.h). The ranks
/// of a mesh run the same ops on its tensors, so all find a copy or none does, unless one of them
/// alone wrote to its local part:
///
///   y = linear(x, w)                            all gather x
///   if (rank == 0) to_local(x).zero_()          all copies are outdated, but only rank 0 knows
///   y = linear(x, w)                            it gathers x again, the others use their copies
///
/// The gather of rank 0 would be matched with the next collective of the others. So each
/// redistribution carries a mark, and a call of ranks with different marks is an error.
///
/// Marks are counted for each set of axes that redistributions move over: ranks of one tp group may
/// run ops on their own that communicate over tp alone.
namespace tessera::exec {

/// A bit for each axis of their mesh, of two ranks or more, on which the shardings differ.
uint64_t moved_axes(const Sharding& from, const Sharding& to);

/// Counts a redistribution that this thread left out.
void count_reuse(const Sharding& from, const Sharding& to);

/// The mark of a redistribution: the axes, and how many were left out since the previous one.
/// 0 between two meshes, whose ranks may have left out different ones.
uint64_t take_reuse_mark(const Sharding& from, const Sharding& to);

}  // namespace tessera::exec
