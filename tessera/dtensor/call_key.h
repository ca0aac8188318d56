#pragma once

#include "tessera/dtensor/decision.h"
#include "tessera/dtensor/dispatch.h"

namespace tessera::dtensor {

/// Adds what a decision about the call on top of the stack depends on: the shardings of its tensors
/// and those arguments that can matter. Throws if a plain tensor is among them that no guard lets.
void add_call(const OpEntry& entry, const Stack& stack, DecisionKey& key);

}  // namespace tessera::dtensor
