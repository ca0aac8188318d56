#pragma once

#include <functional>

#include "tessera/mesh/device_mesh.h"

/// What is cached for a world (plans, programs) keeps it alive. When the ranks of a world have
/// ended, whoever caches is told to let go of it.
namespace tessera::comm {

/// `forget` is called with every world that ends, from the thread that ends it.
void on_world_end(std::function<void(const World&)> forget);

/// Tells all of them.
void announce_world_end(const World& world);

/// For a process that ends: says farewell to the other ranks of process_world() and closes its
/// links now, whoever still holds it. A program in C++ ends its world so by itself.
void end_process_world();

}  // namespace tessera::comm
