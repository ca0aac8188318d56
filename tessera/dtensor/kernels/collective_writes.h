#pragma once

/// Collectives that a program calls itself, on local tensors: `dist.broadcast(to_local(x), 0)`.
/// Their schemas announce no writes, so autograd counts none, and copies that are kept of x would
/// pass for current ones. A kernel at ADInplaceOrView counts them, for memory of sharded tensors
/// alone (dtensor/tensor/copied_memory.h); other tensors keep c10d's behaviour.
namespace tessera::dtensor {

/// Registers it for the ops of c10d and _c10d_functional that write to an argument.
void register_collective_writes();

}  // namespace tessera::dtensor
