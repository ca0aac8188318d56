#pragma once

#include "tessera/dtensor/dispatch/op/op_entry.h"

namespace tessera::dtensor {

/// gather_backward(grad, self, dim, index, sparse_grad): libtorch adds to zeros that have the
/// sharding of `grad`; this one, to zeros that are sharded along `dim` as `self` is. Returns false
/// to use libtorch's implementation.
bool gather_backward(const OpEntry& entry, torch::jit::Stack& stack);

}  // namespace tessera::dtensor
