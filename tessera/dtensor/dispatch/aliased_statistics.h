#pragma once

#include "tessera/dtensor/dispatch/op/operands.h"

namespace tessera::dtensor {

/// Throws if an op writes, without declaring it (op/hidden_writes.h), to memory of a tensor that it
/// reads: running statistics that are a view of the input of their batch norm. libtorch's kernel
/// reads some elements before the write and others after it. If one of the two has to be
/// redistributed, that order is lost. So is the order of writes to statistics whose elements share
/// memory, as those of an expanded tensor do.
void refuse_aliased_statistics(const OpEntry& entry, const Stack& stack);

}  // namespace tessera::dtensor
