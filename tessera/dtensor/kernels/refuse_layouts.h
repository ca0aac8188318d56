#pragma once

/// Sparse, compressed and nested tensors beside sharded ones. libtorch's own errors name a backend
/// that users do not know.
namespace tessera::dtensor {

/// Registers an error for ops that get such a tensor together with a sharded one.
void register_refused_layouts();

}  // namespace tessera::dtensor
