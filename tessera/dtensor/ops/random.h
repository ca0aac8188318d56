#pragma once

/// Random ops on sharded tensors. Those with independent elements (uniform_, normal_, dropout,
/// rand_like, ...) draw by global index, see draws.h: the result depends neither on the number of
/// ranks nor on the placements. The others (multinomial, poisson, ...) run on replicated inputs
/// with generators in the same state, which is correct but gathers.
namespace tessera::dtensor {

void install_random_handlers();

}  // namespace tessera::dtensor
