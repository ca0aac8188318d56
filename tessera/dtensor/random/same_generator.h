#pragma once

#include <ATen/core/Generator.h>

#include "tessera/sharding/sharding.h"

/// Ranks that hold the same elements must draw the same numbers for them, so their generators must
/// be in the same state. That is the program's to see to (manual_seed with one number on all
/// ranks), and is checked here, since copies that differ show in no result of one rank.
///
///   manual_seed(42 + rank);
///   dropout(x, 0.5, true);   // x is R over tp=2: an error that names the ranks and their seeds
///   dropout(y, 0.5, true);   // y is S0: each rank draws for rows of its own, as it was seeded
///
/// Ranks that were never seeded agree: they take over the state of the first of them.
///
/// Costs one all_gather of three numbers along each mesh axis on which the tensor is not sharded,
/// the first time that a seed is used there; no message after that until a rank is seeded anew.
/// These messages are sent under ImplicitComm::forbid too.
///
/// Not found: ranks that agreed once and have since drawn a different number of times. Where only
/// some ranks are seeded anew, or draw plain numbers between being seeded and the check, ranks may
/// call different collectives, which is an error of comm.
namespace tessera::dtensor {

/// Throws InvalidArgument on all ranks along an axis of `sharding` that does not shard the tensor
/// if their generators differ.
void check_same_generator(const at::Generator& generator, const Sharding& sharding);
/// The same for all axes of a mesh.
void check_same_generator(const at::Generator& generator, const DeviceMesh& mesh);

}  // namespace tessera::dtensor
