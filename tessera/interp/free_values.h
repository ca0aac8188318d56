#pragma once

#include "tessera/interp/instruction.h"

namespace tessera::interp {

/// Fills in ArgSource::last_use and Instruction::frees, and replaces results that are never read by
/// kUnused: a value is released by the last instruction that reads it. Inputs of the graph stay
/// until the run ends; weights among them are never released.
///
///   y = relu(x); z = add(y, y)     add takes one copy of y, then y is freed
///   z = add(x, y)                  y is moved into the call, so nothing holds it any more
void mark_last_uses(Code& code);

}  // namespace tessera::interp
