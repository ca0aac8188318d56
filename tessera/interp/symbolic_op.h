#pragma once

#include <ATen/core/ivalue.h>

#include <optional>
#include <span>
#include <string_view>

#include "tessera/interp/instruction.h"

namespace tessera::interp {

/// The arithmetic behind a target such as "_operator.floordiv" or "torch.sym_max", and how many
/// operands it has; nothing for other targets.
struct SymbolicTarget {
  SymbolicOp op;
  int operands;
};
std::optional<SymbolicTarget> find_symbolic(std::string_view target);

/// As Python computes it: division rounds down, `pow` of ints with a negative exponent is a float.
/// Operands are ints, floats or bools. Throws InvalidArgument for a division by zero and for
/// results beyond 64 bits.
c10::IValue evaluate(SymbolicOp op, std::span<const c10::IValue> operands);

}  // namespace tessera::interp
