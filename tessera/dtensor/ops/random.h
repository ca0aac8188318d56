#pragma once

/// Random ops on sharded tensors. Those whose elements are independent (uniform_, normal_, dropout,
/// rand_like, ...) draw by global index, see draws.h: the result hangs neither on the number of
/// ranks nor on the placement. The others (multinomial, poisson, ...) run on replicated inputs with
/// generators in the same state, which is right but gathers.
namespace tessera::dtensor {

void install_random_handlers();

}  // namespace tessera::dtensor
