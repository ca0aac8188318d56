#pragma once

#include <chrono>

#include "tessera/base/api.h"
#include "tessera/comm/rendezvous.h"

/// What the environment sets for a world of processes, whoever starts its rendezvous: a launcher's
/// variables (processes.h) or torch.distributed, whose store the Python package takes over.
namespace tessera::comm {

/// TESSERA_TIMEOUT_S, or kDefaultTimeout. Throws InvalidArgument unless it is a number above 0.
TESSERA_API std::chrono::milliseconds timeout_from(const Environment& environment);

/// TESSERA_CHECK_COLLECTIVES: whether checked mode is on from the start (observe/checked.h).
TESSERA_API bool checks_collectives(const Environment& environment);

}  // namespace tessera::comm
