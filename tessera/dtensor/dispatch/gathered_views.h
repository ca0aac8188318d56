#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "tessera/dtensor/dispatch/dispatch.h"
#include "tessera/dtensor/view_origin.h"

/// A view that needs elements of other ranks is taken of a redistributed copy of its base:
///
///   y = distribute_tensor(full, mesh, {Shard(0)});
///   row = y[3];            // one rank has it; all have a copy
///   row.zero_();           // the copy is written to, then its owner writes the row of y
///   y.add_(1);             // the copy is out of date ...
///   row.sum();             // ... and gathered again before it is read
///
/// So it behaves as a view, as long as all ranks call the same ops in the same order. Only a write
/// to the memory that to_local(y) shares is not seen.
namespace tessera::dtensor {

/// Around an op: brings the gathered views among its arguments up to date, and afterwards moves
/// what it wrote to them into their bases.
class GatheredViewsOfCall {
 public:
  GatheredViewsOfCall(const OpEntry& entry, const Stack& stack);
  void move_writes(const OpEntry& entry) const;

 private:
  std::vector<at::Tensor> written_;
};

/// select of a cut dim as a select of the slice of that index: only the slice is gathered. False if
/// it is no such call.
bool select_of_slice(const OpEntry& entry, const c10::OperatorHandle& op, Stack& stack);

}  // namespace tessera::dtensor
