#pragma once

#include <map>
#include <string>

#include "tessera/program/exported_program.h"

namespace tessera::cli {

/// By output: the shortest floating-point type that it is computed in, by any op that it depends
/// on. Casts and views compute nothing. Outputs that no op computes in a floating-point type are
/// left out.
///
///   logits = linear(x bf16, w bf16).float()        bf16, though the output is f32
std::map<std::string, DType> computed_types(const program::ExportedProgram& program);

}  // namespace tessera::cli
