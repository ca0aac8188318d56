#pragma once

#include "tessera/cost/machine.h"
#include "tessera/partition/graph/assignment.h"

namespace tessera::partition {

struct RewriteOptions {
  /// The machine that the assignment was priced for: it decides between plans of equal effect.
  cost::Machine machine = {};
};

/// The program of one rank: `program` with local tensors in the place of global ones and the
/// collectives that `assignment` asks for. Weights are described, not sharded: see
/// partition/shard_weights.h.
///
/// Passes, each in a file of its own: partition/graph/sizes.h (metadata of local tensors),
/// insert_communication.h, localise.h, relax_views.h, local_symbols.h. The result is verified
/// (program/verify.h).
///
/// Throws NotSupported for what cannot be written into a program of a rank.
program::ExportedProgram program_of_rank(const program::ExportedProgram& program,
                                         const Assignment& assignment, int rank,
                                         const RewriteOptions& options = {});

}  // namespace tessera::partition
