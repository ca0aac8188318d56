#pragma once

#include "tessera/dtensor/dispatch/dispatch.h"

namespace tessera::dtensor {

/// run_local (local_call.h) on a rank outside the mesh. It holds no elements, so nothing runs; the
/// local results are empty tensors. They have the dtypes of those on the mesh's ranks, and views
/// share memory with their base as there, so that every check that follows decides as there.
/// Throws InvalidArgument if the call returns a value, or if sizes depend on values.
void run_outside(const OpEntry& entry, const Decision& decision, Stack& stack);

/// The local part of `as`, without elements, that shares memory with `base`.
at::Tensor empty_view(const at::Tensor& base, const Sharding& as);

}  // namespace tessera::dtensor
