#pragma once

#include "tessera/partition/graph/assignment.h"
#include "tessera/partition/rewrite/emitter.h"

/// Symbols in programs of ranks.
///
/// A symbol means the same in all of them: the global size that it had. Where a dim of that size is
/// sharded, its size is the expression divided by the ranks (partition/graph/sizes.h), and the
/// symbol must be a multiple of them, which the program checks when it runs.
///
/// One case is different: if the caller passes shards of an input, no input has the global size any
/// more. Then the symbol is the local size from here on, and the global one is a multiple of it:
///
///   x: s0x8, S0 over 2      x: s0x8,  and where the program said s0: 2*s0
namespace tessera::partition {

/// Appends checks that symbols are multiples (Assignment::divisible), ahead of all other nodes.
void check_divisible(Emitter& emit, const program::ExportedProgram& program,
                     const Assignment& assignment);

/// Rewrites symbols that only sharded dims of inputs define. `mesh` is seen from the rank.
void localise_symbols(program::ExportedProgram& local, const program::ExportedProgram& program,
                      const Assignment& assignment, const DeviceMesh& mesh);

}  // namespace tessera::partition
