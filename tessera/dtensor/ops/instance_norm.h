#pragma once

#include "tessera/dtensor/dispatch/dispatch.h"

namespace tessera::dtensor {

/// instance_norm in training with running statistics. libtorch computes it as a batch norm with
/// batch * channels channels, whose running statistics are copies of the given ones, averaged
/// afterwards. Here each rank has the copies for its own channels, and the averages are reduced:
/// two numbers per channel. Returns false if it is not such a call; libtorch's implementation is
/// then correct.
bool instance_norm(const OpEntry& entry, const c10::OperatorHandle& op, Stack& stack);

}  // namespace tessera::dtensor
