#pragma once

#include <string_view>

#include "tessera/dtensor/op_entry.h"

namespace tessera::dtensor {

/// Registers the sharded kernel for every op, once per process; 2,400 ops, a few milliseconds. Runs
/// when the library is loaded.
void register_kernels();

/// True if the op exists and has the sharded kernel.
bool has_kernel(std::string_view op);

/// Takes an op over from the common path; nullptr gives it back. For ops of this library and of a
/// user's own; before the op is first used with sharded tensors.
void set_handler(std::string_view op, Handler handler);
void set_local_kernel(std::string_view op, LocalKernel kernel);
void set_infer(std::string_view op, Infer infer);

/// How many ops have the sharded kernel.
size_t registered_ops();

}  // namespace tessera::dtensor
