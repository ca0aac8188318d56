#pragma once

#include "tessera/program/exported_program.h"

namespace tessera::partition {

/// Replaces in-place ops by their functional forms where the write is not observable: the tensor is
/// made by the program, and neither it nor anything that shares its memory is read afterwards.
///
///   y = conv2d(x, w); z = relu_(y)            relu(y)
///   y = a + b; v = y.mT; z = mul_(y, 2); v    stays: v sees the product
///
/// Tensors that are written in place cannot be redistributed and stay whole (program_view.h). So
/// without this pass an `nn.ReLU(inplace=True)` or `out += shortcut` keeps the weights in front of
/// it whole. Returns how many nodes changed; their names, order and results stay. What reads a
/// tensor after a write that remains reads the result of the write (written_values.h).
int replace_writes(program::ExportedProgram& program);

}  // namespace tessera::partition
