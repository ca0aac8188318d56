#pragma once

#include <string>

#include "tessera/mesh/device_mesh.h"

namespace tessera::module {

/// Broadcasts the text of the first rank of the mesh; the text of other ranks is ignored. Lets all
/// ranks throw an error that one has found, where an exception on one rank would leave the others
/// blocked.
std::string broadcast_text(const DeviceMesh& mesh, const std::string& text);

}  // namespace tessera::module
