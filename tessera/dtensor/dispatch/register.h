#pragma once

#include <memory>
#include <string_view>

#include "tessera/dtensor/dispatch/op_entry.h"

namespace tessera::dtensor {

/// Registers the sharded kernel for every op, once per process: 2,400 ops in a few milliseconds.
/// Runs when the library is loaded, see ops/handlers.cpp.
void register_kernels();

/// The op's entry; one of its own for an op without the sharded kernel.
std::shared_ptr<const OpEntry> entry_of(const c10::OperatorHandle& op);

/// Whether the op exists and has the sharded kernel.
bool has_kernel(std::string_view op);

/// Installs a handler for an op; nullptr removes it. For ops of this library and of a user's own;
/// before the op is first used with sharded tensors.
void set_handler(std::string_view op, Handler handler);
void set_local_kernel(std::string_view op, LocalKernel kernel);
/// The same for a composite op that has a kernel here (composite.h): tried before it is decomposed.
void set_composite_handler(std::string_view op, Handler handler);
void set_infer(std::string_view op, Infer infer);

/// Registers the sharded kernel for an op of another library, which may not be defined yet. Without
/// it such an op has only the fallback, over which a composite kernel takes precedence.
void claim(std::string_view op);
/// A handler for an op that may not be defined yet.
void set_own_handler(std::string_view op, OwnHandler handler);

/// Whether the op has a handler.
bool has_handler(std::string_view op);

/// The number of ops with the sharded kernel.
size_t registered_ops();

}  // namespace tessera::dtensor
