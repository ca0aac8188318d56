#pragma once

#include <ATen/core/Generator.h>

#include "tessera/sharding/sharding.h"

/// Ranks that hold the same elements must draw the same numbers for them, so their generators must
/// be in the same state. The program is responsible for that (manual_seed with the same number on
/// all ranks). It is checked here, because diverging replicas are not visible in the result of one
/// rank.
///
///   manual_seed(42 + rank);
///   dropout(x, 0.5, true);   // x is R over tp=2: an error that names the ranks and their seeds
///   dropout(y, 0.5, true);   // y is S0: allowed, each rank draws for its own rows
///
/// Ranks that were never seeded take over the state of the first of them.
///
/// Cost: one all_gather of three numbers along each mesh axis that does not shard the tensor, the
/// first time a seed is used there; no further messages until a rank is seeded again. These
/// messages are sent under ImplicitComm::forbid as well.
///
/// Not detected: ranks that agreed once and have since drawn a different number of times. If only
/// some ranks are seeded again, or draw plain numbers between seeding and the check, ranks may call
/// different collectives, which comm reports as an error.
namespace tessera::dtensor {

/// Throws InvalidArgument, on all ranks along an axis that does not shard the tensor, if their
/// generators differ.
void check_same_generator(const at::Generator& generator, const Sharding& sharding);
/// The same for all axes of a mesh.
void check_same_generator(const at::Generator& generator, const DeviceMesh& mesh);

}  // namespace tessera::dtensor
