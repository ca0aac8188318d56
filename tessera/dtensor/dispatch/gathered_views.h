#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "tessera/dtensor/dispatch/op/operands.h"
#include "tessera/dtensor/tensor/view_origin.h"

/// A view that needs elements of other ranks is a view of a redistributed copy of its base:
///
///   y = distribute_tensor(full, mesh, {Shard(0)});
///   row = y[3];            // one rank owns it; all have a copy
///   row.zero_();           // writes to the copy, then its owner updates the row of y
///   y.add_(1);             // the copy is stale ...
///   row.sum();             // ... and gathered again before it is read
///
/// A view that libtorch computes when it is read, as conj() of a complex tensor, is a copy too.
///
/// So it behaves as a view, as long as all ranks call the same ops in the same order. Not detected:
/// a write to the memory that to_local(y) shares.
namespace tessera::dtensor {

/// Scope of one op call: refreshes stale gathered views among the arguments, and afterwards
/// forwards what the op wrote to them to their bases.
class GatheredViewsOfCall {
 public:
  GatheredViewsOfCall(const OpEntry& entry, const Stack& stack);
  void move_writes(const OpEntry& entry) const;

 private:
  std::vector<at::Tensor> written_;
};

/// Runs select on a sharded dim as a select of the one-element slice, so that only the slice is
/// gathered. Returns false if it is not such a call.
bool select_of_slice(const OpEntry& entry, const c10::OperatorHandle& op, Stack& stack);

}  // namespace tessera::dtensor
