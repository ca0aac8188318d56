#pragma once

#include <string>

#include "tessera/mesh/device_mesh.h"

namespace tessera::module {

/// What the first rank of the mesh says, on every rank; the others' text does not matter. Lets all
/// ranks throw what one has found, where a lone exception would leave the others waiting.
std::string broadcast_text(const DeviceMesh& mesh, const std::string& text);

}  // namespace tessera::module
