#pragma once

#include "tessera/dtensor/dispatch/dispatch.h"

namespace tessera::dtensor {

/// instance_norm in training with running statistics. libtorch computes it as a batch norm of
/// batch * channels channels, whose running statistics are copies of the given ones, averaged
/// afterwards. Here each rank has the copies of its own channels, and the averages are reduced: two
/// numbers a channel. False: not such a call, libtorch's way is right.
bool instance_norm(const OpEntry& entry, const c10::OperatorHandle& op, Stack& stack);

}  // namespace tessera::dtensor
