#pragma once

#include <cstdint>

#include "cli/tensor_file.h"
#include "tessera/partition/manifest/manifest.h"
#include "tessera/program/exported_program.h"

/// Random inputs that suffice to run a program: normally distributed floats; valid indexes for
/// embeddings, other integers 0 or 1; random booleans. Dynamic sizes are those of the export.
/// A seed gives a sharded program the inputs that it gives the whole one.
namespace tessera::cli {

NamedTensors random_inputs(const program::ExportedProgram& program, uint64_t seed);

/// The same for a sharded program, with global shapes; `of_a_rank` is the program of any rank.
NamedTensors random_inputs(const partition::Manifest& manifest,
                           const program::ExportedProgram& of_a_rank, uint64_t seed);

}  // namespace tessera::cli
