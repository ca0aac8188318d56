#pragma once

#include <functional>

#include "tessera/base/api.h"
#include "tessera/mesh/device_mesh.h"

/// Caches that belong to a world (plans, programs) keep it alive. When the ranks of a world have
/// ended, registered listeners drop what they cache for it.
namespace tessera::comm {

/// `forget` is called with every world that ends, on the thread that ends it.
void on_world_end(std::function<void(const World&)> forget);

/// Calls all listeners.
void announce_world_end(const World& world);

/// For a process that exits: runs the shutdown barrier with the other ranks of process_world() and
/// closes its connections now, regardless of remaining references. C++ programs do this
/// automatically.
TESSERA_API void end_process_world();

}  // namespace tessera::comm
