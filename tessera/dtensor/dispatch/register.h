#pragma once

#include <string_view>

#include "tessera/dtensor/dispatch/op_entry.h"

namespace tessera::dtensor {

/// Registers the sharded kernel for every op, once per process; 2,400 ops, a few milliseconds. Runs
/// when the library is loaded, see ops/handlers.cpp.
void register_kernels();

/// True if the op exists and has the sharded kernel.
bool has_kernel(std::string_view op);

/// Takes an op over from the common path; nullptr gives it back. For ops of this library and of a
/// user's own; before the op is first used with sharded tensors.
void set_handler(std::string_view op, Handler handler);
void set_local_kernel(std::string_view op, LocalKernel kernel);
/// The same for a composite op that has a kernel of ours (composite.h): tried before it is taken
/// apart.
void set_composite_handler(std::string_view op, Handler handler);
void set_infer(std::string_view op, Infer infer);

/// Puts the sharded kernel under an op of another library, which may not be defined yet. Without
/// it such an op has the fallback, which a composite kernel goes before.
void claim(std::string_view op);
/// A handler for an op that may not be defined yet.
void set_own_handler(std::string_view op, OwnHandler handler);

/// True if a handler takes the op over.
bool has_handler(std::string_view op);

/// How many ops have the sharded kernel.
size_t registered_ops();

}  // namespace tessera::dtensor
