#pragma once

#include "tessera/program/exported_program.h"

namespace tessera::partition {

/// Throws NotSupported with the name of the first node that draws random numbers: every rank would
/// draw from a generator of its own, and tensors that count as equal on all ranks would differ.
/// Models are exported for inference after model.eval(), in which dropout draws nothing.
void require_no_random_ops(const program::ExportedProgram& program);

}  // namespace tessera::partition
